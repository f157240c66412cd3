"""A learner that waits for its first turn on a GPU leaves when it is asked to, and so do its other ranks."""

import subprocess
import sys

from services.config.tree import Config
from services.store.gpu_lease import GpuLease
from services.store.redis_server import private_redis
from services.store.store import Store

RANK = """
import sys
from pathlib import Path
import ray
from learner.actor import LearnerRank

config, model, url, number = sys.argv[1:5]
ray.get_actor = lambda name: None  # nothing is published before the first turn
rank = LearnerRank(config_json=config, run="r", rank=int(number), world=2, store_url=url, weights_actor_name="w",
                   model_path=model)
if number == "0":
    print(rank.rendezvous(), flush=True)
    rank.leave()
rank.run(sys.stdin.readline().strip())
"""


def test_a_learner_that_is_asked_to_leave_before_its_first_turn_ends_in_order(tmp_path):
    config = Config(name="r", steps=1, runs_dir=tmp_path / "runs", rollout={"sleep": True}, learner={"ranks": 2})
    config.run_dir.mkdir(parents=True)
    with private_redis(tmp_path) as url:
        worker = GpuLease(Store(url, "r"), "rollout-0")
        assert worker.take()
        command = [sys.executable, "-c", RANK, config.model_dump_json(), str(tmp_path), url]
        ranks = [subprocess.Popen([*command, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                 for number in range(2)]
        try:
            address = ranks[0].stdout.readline()
            for rank in ranks:
                rank.stdin.write(address)
                rank.stdin.flush()
            assert [rank.wait(120) for rank in ranks] == [0, 0]
        finally:
            for rank in ranks:
                rank.kill()
                rank.communicate()
            worker.give()
