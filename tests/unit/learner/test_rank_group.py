"""The deadline of collectives is the config's. In processes of their own: a process has one process group."""

import subprocess
import sys

RANK = """
import sys, torch, torch.distributed as dist, learner.trainer
from pathlib import Path
from learner.actor import LearnerRank
from services.config.tree import Config

def loads_no_model(config, model_path, rank_group, *, probed, shared, demonstrations):
    print(dist.group.WORLD._get_backend(torch.device("cpu")).options._timeout.total_seconds(), flush=True)
    rank_group.leave()
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
import os, sys, time
from torch.distributed import FileStore
from learner.rank_group import RankGroup

def rank(number, collective):
    rank_group = RankGroup(number, 2, FileStore(f"{sys.argv[1]}/{collective}", 2), collective_s=3)
    if number:
        time.sleep(200)
    try:
        getattr(rank_group, collective)(*([] if collective == "barrier" else [[1.0]]))
    except RuntimeError as error:
        print(collective, "raised" if "imed out" in str(error) else error, flush=True)

children = {}
for collective in sys.argv[2:]:
    for number in (0, 1):
        if not (child := os.fork()):
            rank(number, collective)
            os._exit(0)
        children[child] = number
for child, number in children.items():
    if not number:
        os.waitpid(child, 0)
for child, number in children.items():
    if number:
        os.kill(child, 9)
"""


def test_a_rank_that_hangs_ends_the_wait_of_the_others(tmp_path):
    """The pairs are forked, so that torch is imported once, and wait at the same time."""
    collectives = ("all_gather", "all_reduce", "barrier")
    done = subprocess.run([sys.executable, "-c", HANGING, str(tmp_path), *collectives], capture_output=True, text=True,
                          timeout=150, check=True)
    assert sorted(done.stdout.splitlines()) == [f"{collective} raised" for collective in collectives]
