"""The deadline of collectives is the config's. In a process of its own: a process has one process group."""

import subprocess
import sys

RANK = """
import sys, torch, torch.distributed as dist, learner.trainer
from pathlib import Path
from learner.actor import LearnerRank
from services.config.tree import Config

def loads_no_model(config, model_path, gang, *, probed):
    print(dist.group.WORLD._get_backend(torch.device("cpu")).options._timeout.total_seconds(), flush=True)
    gang.leave()
    raise SystemExit(0)

learner.trainer.Learner = loads_no_model
LearnerRank._lead = lambda self, make, stack: make()  # without a store
config = Config(name="t", steps=1, runs_dir=Path(sys.argv[1]), learner={"collective_s": 77})
config.run_dir.mkdir()
LearnerRank(config_json=config.model_dump_json(), run="r", rank=0, world=1, store_url="", weights_actor_name="",
            model_path=sys.argv[1])._work(None)
"""


def test_the_configured_deadline_reaches_the_collectives(tmp_path):
    done = subprocess.run([sys.executable, "-c", RANK, str(tmp_path)], capture_output=True, text=True, timeout=120,
                          check=True)
    assert done.stdout == "77.0\n"
