"""A private Ray that dies while weights are published is told from every other error, so that the run can go on.

The last publication does not see at first that the raylet is dead: Ray must not end the process for that.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from services.store.redis_server import private_redis

TOYS = Path(__file__).parents[2] / "toys"
pytestmark = [pytest.mark.long, pytest.mark.ray]

PUBLISHING = """
import sys
import time
from pathlib import Path
from types import SimpleNamespace
sys.path.insert(0, sys.argv[3])
from deploy.launch.topology import publish_folder
from deploy.launch.ray_cluster import private_ray
import deploy.members.private_ray as private_ray_module
from deploy.members.private_ray import RayLost, dead_part
from deploy.runs.configs import load_config
from processes import only_child
from services.store.store import Store

with private_ray(log_to_driver=False, configure_logging=False):
    import ray
    from services.weights.actor import WeightsActor
    parts = SimpleNamespace(config=load_config("alfworld-tiny", ()), store=Store(sys.argv[1], "r"),
                            weights=WeightsActor.remote())
    # The lease of a learner that died at the end of its last step.
    parts.store.leases.acquire("learner", "test-learner", ttl_s=3600)
    first = publish_folder(parts, Path(sys.argv[2]), holder="test")
    assert ray.get(parts.weights.latest.remote(), timeout=60) == first
    only_child("ray::WeightSt").kill()
    second = publish_folder(parts, Path(sys.argv[2]), holder="test")
    assert ray.get(parts.weights.latest.remote(), timeout=60) == second
    only_child("raylet").kill()
    while not dead_part():
        time.sleep(0.01)
    unseen = [1, 2, 3]
    private_ray_module.dead_part = lambda: "" if unseen and unseen.pop() else dead_part()
    try:
        publish_folder(parts, Path(sys.argv[2]), holder="test")
    except RayLost as lost:
        print(lost)
    assert parts.store.leases.acquire("learner", "another").epoch == 5
"""


def test_a_lost_actor_gets_the_weights_again_and_a_lost_ray_is_named(tied_folder, tmp_path):
    with private_redis(tmp_path) as url:
        done = subprocess.run([sys.executable, "-c", PUBLISHING, url, tied_folder, TOYS], capture_output=True,
                              text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr
    assert "the private Ray died (raylet)\n" in done.stdout
