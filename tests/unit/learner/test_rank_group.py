"""The deadline of collectives is the config's. In processes of their own: a process has one process group."""

import subprocess
import sys

import pytest

RANK = """
import sys, torch, torch.distributed as dist, learner.trainer
from pathlib import Path
from learner.actor import LearnerRank
from services.config.tree import Config

def loads_no_model(config, model_path, gang, *, probed, shared):
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


HANGING = """
import sys, time
from torch.distributed import FileStore
from learner.rank_group import RankGroup

rank = int(sys.argv[2])
gang = RankGroup(rank, 2, FileStore(sys.argv[1], 2), collective_s=20)
print("met", flush=True)
if rank:
    time.sleep(200)
try:
    getattr(gang, sys.argv[3])(*([] if sys.argv[3] == "barrier" else [[1.0]]))
except RuntimeError as error:
    print("raised" if "imed out" in str(error) else error, flush=True)
"""


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "barrier"])
def test_a_rank_that_hangs_ends_the_wait_of_the_others(tmp_path, collective):
    """These waited for a day, as for a command: only the run's stall of an hour ended them."""
    first, second = (subprocess.Popen([sys.executable, "-c", HANGING, tmp_path / "store", str(rank), collective],
                                      stdout=subprocess.PIPE, text=True) for rank in (0, 1))
    try:
        assert first.communicate(timeout=150)[0] == "met\nraised\n"
    finally:
        for process in (first, second):
            process.kill()
            process.wait()
