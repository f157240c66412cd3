"""Places of members on a Ray cluster of several nodes, which join and leave while members wait or run."""

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group

from deploy.launch.topology import _weights_actor
from deploy.members import ray_actor
from deploy.members.env_server import PlacedServer, ServerHost
from deploy.members.placement import ClusterPlace, GpuShare, SharedGpus, bundle, total_nodes
from deploy.members.ray_actor import Actor, LearnerRanks
from deploy.runs.configs import load_config
from services.config.file import dump_config
from services.config.sections import SupervisionSection
from services.controller.supervise import Fleet, Supervisor
from services.process.addresses import is_local
from services.store.redis_server import private_redis
from services.store.store import Store

pytestmark = [pytest.mark.long, pytest.mark.ray]
DEADLINE_S = 240.0


class Rank:
    """A learner rank that meets the other ranks and then waits, as a training rank does."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world

    def rendezvous(self) -> str:
        return ""

    def run(self, _: str = "") -> None:
        time.sleep(600)


@pytest.fixture(scope="module")
def head() -> Iterator[Cluster]:
    """Provides a cluster of a head without CPUs. A node counts as dead after one second without an answer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        made = Cluster()
        add_node(made, num_cpus=0, include_dashboard=False, _system_config={
            "health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 2})
        ray.init(address=made.address, configure_logging=False, log_to_driver=False)
        yield made
        ray.shutdown()
        made.shutdown()


@pytest.fixture
def cluster(head: Cluster) -> Iterator[Cluster]:
    """Provides the head alone. Places are given back after the test, and its nodes are removed."""
    yield head
    for name, place in placement_group_table().items():
        if place["state"] != "REMOVED":
            remove_placement_group(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(name))))
    for node in list(head.worker_nodes):
        head.remove_node(node, allow_graceful=False)
    until(lambda: len(total_nodes()) == 1)


def add_node(cluster: Cluster, **options: Any) -> Any:
    """Adds a node, the first one as the head, in several tries: Ray gives up after 30 s, which a busy machine needs."""
    deadline, is_head = time.monotonic() + DEADLINE_S, cluster.head_node is None
    while True:
        before = set(psutil.Process().children(recursive=True))
        try:
            return cluster.add_node(**options)
        except Exception:  # Ray raises bare ones
            if time.monotonic() > deadline:
                raise
        for process in set(psutil.Process().children(recursive=True)) - before:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if is_head:
            cluster.head_node = None


def until(holds: Callable[[], Any], supervisor: Supervisor | None = None) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline
        if supervisor is not None:
            supervisor.check()
        time.sleep(0.1)


def refuses_connections(url: str) -> bool:
    """Whether nobody listens at this URL. A server that ends just now still accepts, and then resets the connection."""
    try:
        httpx.get(f"{url}/healthz", timeout=10)
    except httpx.ConnectError:
        return True
    except httpx.TransportError:
        return False
    return False


def deaths(notes: list[str]) -> list[str]:
    """Returns the notes on deaths. A member that waits long for a place has notes on that too."""
    return [note for note in notes if " died (" in note]


def reaches_redis(mark: str, folder: Path) -> bool:
    """Whether a process on the node with this mark reaches the Redis that a run starts on this node."""
    with private_redis(folder, ray.util.get_node_ip_address()) as url:
        beat = ray.remote(lambda: Store(url, "late").state.beat(mark, {})).options(num_cpus=0, resources={mark: 0.01})
        ray.get(beat.remote(), timeout=DEADLINE_S)
        return list(Store(url, "late").state.beats()) == [mark]


def test_a_rank_group_waits_for_room_starts_whole_and_goes_on_with_fewer_after_the_loss_of_a_node(
        cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for _ in range(2):
        add_node(cluster, num_cpus=1)
    started: list[tuple[int, int]] = []
    actor = ray.remote(Rank)

    def make(rank: int, world: int, options: Any) -> Any:
        started.append((rank, world))
        return actor.options(**options).remote(rank, world)

    whole = ClusterPlace([bundle(cpus=1)] * 3)
    whole.ask()
    until(lambda: whole.lacks() == "needs 3 bundles of 1 CPU, and the cluster has 2")
    assert started == []
    whole.release()
    marked = ClusterPlace([bundle(cpus=1, nodes="gpu_node")])
    marked.ask()
    until(lambda: "a node with gpu_node, and the cluster has none" in marked.lacks())
    third = add_node(cluster, num_cpus=1, resources={"gpu_node": 1})
    until(marked.granted)
    marked.release()
    assert reaches_redis("gpu_node", tmp_path / "redis")
    notes: list[str] = []
    supervisor = Supervisor(notes.append, SupervisionSection())
    rank_group = LearnerRanks(3, make, bundle(cpus=1), fewest=2)
    supervisor.add(rank_group)
    until(lambda: len(started) == 3, supervisor)
    until(lambda: rank_group._lives, supervisor)
    monkeypatch.setattr(ray_actor, "SHRINK_AFTER_S", 0.0)  # only now: three had to be waited for, however long
    cluster.remove_node(third, allow_graceful=False)
    until(lambda: len(started) == 5, supervisor)
    assert started == [(0, 3), (1, 3), (2, 3), (0, 2), (1, 2)]
    assert "learner died" in deaths(notes)[0]
    supervisor.stop()


def test_ranks_share_a_node_although_a_run_adds_its_workers_first(cluster: Cluster):
    """Ray gave each worker the emptiest node, so each node had as many ranks as workers."""
    for _ in range(2):
        add_node(cluster, num_cpus=4)
    until(lambda: len(total_nodes()) == 3)
    supervisor, actor = Supervisor(print, SupervisionSection()), ray.remote(Rank)
    nodes: dict[str, str] = {}

    def make(name: str, options: Any) -> Any:
        place = options["scheduling_strategy"]
        bundles = placement_group_table(place.placement_group)["bundles_to_node_id"]
        nodes[name] = bundles[place.placement_group_bundle_index]
        return actor.options(**options).remote(0, 1)

    fleet = Fleet(supervisor, lambda index: Actor(
        f"worker {index}", "rollout", f"rollout-{index}", partial(make, f"worker {index}"),
        ClusterPlace([bundle(cpus=1)])))
    fleet.want(4)
    supervisor.add(LearnerRanks(4, lambda rank, _, options: make(f"rank {rank}", options), bundle(cpus=1)))
    until(lambda: len(nodes) == 8, supervisor)
    assert len({node for name, node in nodes.items() if name.startswith("rank")}) == 1, nodes
    supervisor.stop()


def test_environment_servers_run_where_there_is_room_and_another_takes_the_place_of_a_dead_one(
        cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    dump_config(load_config("alfworld-tiny", ()), tmp_path / "config.yaml")
    add_node(cluster, num_cpus=2)
    notes: list[str] = []
    supervisor, host = Supervisor(notes.append, SupervisionSection()), ray.remote(max_restarts=0)(ServerHost)
    fleet = Fleet(supervisor, lambda index: PlacedServer(
        index, lambda options: host.options(**options).remote(
            index, str(tmp_path / "config.yaml"), str(tmp_path), "random-token", 600.0),
        ClusterPlace([bundle(cpus=1)])))
    try:
        fleet.want(3)
        until(lambda: sum(bool(one.url) for one in fleet.members) == 2, supervisor)
        first, second = (one.url for one in fleet.members if one.url)
        killed = next(one.name for one in fleet.members if one.url == first)
        right = {"authorization": "Bearer random-token"}
        assert [httpx.get(f"{first}/v1/info", headers=headers, timeout=60).status_code
                for headers in ({}, right)] == [401, 200]
        assert httpx.get(f"{first}/metrics", timeout=60).status_code == 200
        address = str(urlsplit(first).hostname)
        log = tmp_path / ("log.jsonl" if is_local(address) else f"logs/{address}.jsonl")
        assert f'"url": "{first}"' in log.read_text()
        (server,) = [process for process in psutil.process_iter(["cmdline"])
                     if "serve-env" in (process.info["cmdline"] or ()) and first.rpartition(":")[2]
                     in process.info["cmdline"]]
        os.kill(server.pid, signal.SIGKILL)
        # The one that waited for a place may take that of the dead one, which then waits.
        def others() -> set[str]:
            return {one.url for one in fleet.members} - {"", second}

        until(lambda: others() and first not in others(), supervisor)
        assert f"{killed} died" in deaths(notes)[0]
        (third,) = others()
        assert httpx.get(f"{third}/v1/info", headers=right, timeout=60).status_code == 200
        fleet.want(1)
        until(lambda: not supervisor.states()["environment", "draining"], supervisor)
        until(lambda: refuses_connections(second))
    finally:
        supervisor.stop()


def test_published_weights_lie_on_the_node_with_the_largest_object_store(cluster: Cluster):
    """Ray itself puts actors without resources on any node, such as the head."""
    roomy, config = add_node(cluster, num_cpus=0, object_store_memory=200 << 20), load_config("alfworld-tiny", ())

    def place() -> str:
        actor, _ = _weights_actor(config, uuid.uuid4().hex)
        ray.get(actor.latest.remote(), timeout=DEADLINE_S)
        return ray._private.state.actors(actor._actor_id.hex())["Address"]["NodeID"]

    until(lambda: place() == roomy.node_id)  # the head may learn of the node a moment later
    assert {place() for _ in range(6)} == {roomy.node_id}


class Holder:
    """A process that tells which GPU Ray has given it."""

    def gpus(self) -> list[int]:
        return list(ray.get_gpu_ids())


def test_each_worker_shares_its_gpu_with_one_rank_also_after_a_restart(cluster: Cluster):
    """Ray counts GPUs that are only claimed, so this needs none."""
    add_node(cluster, num_cpus=8, num_gpus=3)
    shared = SharedGpus(bundle(cpus=2), 3)
    ranks = GpuShare(shared, [bundle(cpus=1, gpus=0.6)] * 3)
    workers = [GpuShare(shared, [bundle(cpus=1, gpus=0.4)], first=k) for k in range(3)]
    holder: Any = ray.remote(Holder)
    ranks.ask()
    for worker in workers:
        worker.ask()
    until(lambda: ranks.granted() and all(worker.granted() for worker in workers))
    made = [holder.options(**ranks.options(rank)).remote() for rank in range(3)]
    beside = [holder.options(**worker.options(0)).remote() for worker in reversed(workers)]
    learner, sampler = (ray.get([one.gpus.remote() for one in some], timeout=DEADLINE_S) for some in (made, beside))
    assert sorted(learner) == [[0], [1], [2]]
    assert sampler[::-1] == learner
    ray.kill(beside[0])
    workers[2].release()
    workers[2].ask()
    assert workers[2].granted()
    again = holder.options(**workers[2].options(0)).remote()
    assert ray.get(again.gpus.remote(), timeout=DEADLINE_S) == learner[2]


def test_shared_gpus_of_one_lost_node_are_asked_for_again_on_several(cluster: Cluster):
    """Ray looks for one node with room for all of them, and there is none any more."""
    large = cluster.add_node(num_cpus=2, num_gpus=2)
    workers = [GpuShare(shared, [bundle(cpus=1, gpus=0.4)], first=k)
               for shared in [SharedGpus(bundle(cpus=1), 2)] for k in range(2)]
    for worker in workers:
        worker.ask()
    until(lambda: all(worker.granted() for worker in workers))
    for _ in range(2):
        cluster.add_node(num_cpus=1, num_gpus=1)
    cluster.remove_node(large, allow_graceful=False)
    holder: Any = ray.remote(Holder)
    until(lambda: len(total_nodes()) == 3)
    for worker in workers:
        worker.release()
        worker.ask()
    until(lambda: all(worker.granted() for worker in workers))
    made = [holder.options(**worker.options(0)).remote() for worker in workers]
    assert ray.get([one.gpus.remote() for one in made], timeout=DEADLINE_S) == [[0], [0]]
