"""One version of the weights on its way to many workers: requests to the weights actor, and copies to other nodes.

    requests   N threads ask the weights actor for the version and map its buffer, on one node
    copies     N raylets on this machine, each with an object store of its own, fetch the version at once

All raylets share the cores of this machine and its loopback, so bytes a second are a lower bound. CPU time does not
depend on that: the raylet of the owner's node spends it on what it sends, the others on what they receive and pass on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np
import psutil

from lab.bench.figures import Figure, Report, silent
from services.records import Version

FETCHERS = (1, 16, 64, 256)
FETCHES = 2_000
"""Fetches of each number of threads together."""
NODES = (1, 4, 8)
SIZE = 32 << 20
"""Bytes of a version. A node holds a few of them."""
ROUNDS = 5
START_S, FETCH_S = 600.0, 300.0
_VERSIONS = count(1)


def run(report: Report = silent) -> list[Figure]:
    """Runs the bench in a few minutes."""
    from deploy.launch.ray_cluster import private_ray

    parts, figures = len(FETCHERS) + len(NODES), list[Figure]()
    with private_ray(num_cpus=1, object_store_memory=8 * SIZE, log_to_driver=False, configure_logging=False):
        import ray

        from services.weights.actor import WeightsActor

        try:
            owner: Any = WeightsActor.remote()
            for done, threads in enumerate(FETCHERS):
                report(f"{threads} fetchers", done, parts)
                figures += _requests(owner, threads)
            report(f"starting {max(NODES)} nodes", len(FETCHERS), parts)
            with _raylets(max(NODES)) as raylets:
                fetchers = [_fetcher(index) for index in range(len(raylets))]
                ray.get([one.ready.remote() for one in fetchers], timeout=START_S)
                for done, nodes in enumerate(NODES, len(FETCHERS)):
                    report(f"{nodes} nodes", done, parts)
                    figures += _copies(owner, fetchers[:nodes], raylets[:nodes])
        finally:
            ray.shutdown()
    return figures


def _publish(owner: Any) -> Version:
    """Publishes random bytes as a new version."""
    import ray

    version = Version(incarnation=0, step=next(_VERSIONS))
    weights = np.random.default_rng(version.step).integers(0, 256, SIZE, dtype=np.uint8)
    ray.get(owner.publish.remote(version, [], weights), timeout=FETCH_S)
    return version


def _requests(owner: Any, threads: int) -> list[Figure]:
    """Returns how fast one node's workers get a version, and what it costs the weights actor."""
    import ray

    version = _publish(owner)
    (actor,) = (one for one in psutil.Process().children(recursive=True) if "WeightStore" in " ".join(one.cmdline()))

    def fetch(_: int) -> None:
        found: Any = ray.get(owner.fetch.remote(version), timeout=FETCH_S)
        assert len(ray.get(found.refs[0], timeout=FETCH_S)) == SIZE

    before, began = _cpu([actor]), time.monotonic()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(fetch, range(FETCHES)))
    seconds, spent = time.monotonic() - began, _cpu([actor]) - before
    name = f"{threads} fetchers of one node" if threads > 1 else "1 fetcher of one node"
    return [Figure(name=f"{name}: fetches", value=FETCHES / seconds, unit="fetches/s"),
            Figure(name=f"{name}: CPU of the weights actor per fetch", value=1000 * spent / FETCHES, unit="ms")]


def _copies(owner: Any, fetchers: Sequence[Any], raylets: Sequence[psutil.Process]) -> list[Figure]:
    """Returns how fast all nodes get a version, and how much of the work the owner's node does."""
    import ray

    owners = [one for one in psutil.Process().children(recursive=True)
              if one.name() == "raylet" and "--head" in one.cmdline()]
    sent, received, seconds = _cpu(owners), _cpu(raylets), list[float]()
    for _ in range(ROUNDS):
        published: Any = ray.get(owner.fetch.remote(_publish(owner)), timeout=FETCH_S)
        began = time.monotonic()
        got = ray.get([one.fetch.remote(published.refs) for one in fetchers], timeout=FETCH_S)
        seconds.append(time.monotonic() - began)
        assert got == [SIZE] * len(fetchers)
    gigabytes = ROUNDS * SIZE * len(fetchers) / 1e9
    sent, received = _cpu(owners) - sent, _cpu(raylets) - received
    name = f"{len(fetchers)} nodes" if len(fetchers) > 1 else "1 node"
    return [
        Figure(name=f"{name}: copies, all together", value=SIZE * len(fetchers) / min(seconds) / 1e9, unit="GB/s"),
        Figure(name=f"{name}: CPU of the owner's raylet per GB that arrived", value=sent / gigabytes, unit="s"),
        Figure(name=f"{name}: CPU of the other raylets per GB that arrived", value=received / gigabytes, unit="s")]


def _cpu(processes: Sequence[psutil.Process]) -> float:
    """Returns the CPU seconds that these processes have used."""
    return sum(used.user + used.system for used in (one.cpu_times() for one in processes))


def _fetcher(index: int) -> Any:
    """Starts a worker on the node with this number."""
    import ray

    return ray.remote(num_cpus=0)(Fetcher).options(resources={f"fetcher-{index}": 1}).remote()


class Fetcher:
    """A worker that fetches a version as a rollout worker does, and does not look at it."""

    def ready(self) -> bool:
        return True

    def fetch(self, refs: list[Any]) -> int:
        """Returns the bytes of the version, which are on this node then."""
        import ray

        return len(ray.get(refs[0], timeout=FETCH_S))


@contextmanager
def _raylets(number: int) -> Iterator[list[psutil.Process]]:
    """Adds nodes to the private cluster. Yields their raylets."""
    nodes: list[Any] = []
    try:
        for index in range(number):
            nodes.append(_node(index))
        yield [psutil.Process(node.all_processes["raylet"][0].process.pid) for node in nodes]
    finally:
        for node in nodes:
            node.kill_all_processes(check_alive=False, allow_graceful=True, wait=True)


def _node(index: int) -> Any:
    """Starts a node by Ray's own class: `ray start` would take another address than the loopback of a private Ray.

    Ray gives up after 30 s, which a busy machine may need, so it is tried again until START_S.
    """
    import ray
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    deadline = time.monotonic() + START_S
    while True:
        asked = RayParams(gcs_address=ray.get_runtime_context().gcs_address, node_ip_address="127.0.0.1", num_cpus=0,
                          object_store_memory=8 * SIZE, resources={f"fetcher-{index}": 1})
        try:
            return Node(asked, head=False, shutdown_at_exit=False, spawn_reaper=False)
        except Exception:  # Ray raises bare ones
            if time.monotonic() >= deadline:
                raise
