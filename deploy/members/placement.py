"""Places on a Ray cluster: resources for one process or for a rank group, granted all together or not at all.

A place is a Ray placement group with one bundle for each process. A rank group is processes that run together, such as
the learner's ranks. They share a node if one has room for all of them, else they use as few nodes as
possible. While there is no room, the place says what the cluster lacks.

Ray has no public function for the free resources of each node. So if some node is large enough, a place is first asked
for on one node, and after SPREAD_AFTER_S on several. If the large node is busy, a start waits that long. Ray reports
free resources for the entire cluster. If several nodes together have the CPUs and GPUs of a bundle, and none has both,
`lacking` counts too much as free.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from deploy.members import private_ray
from services.amounts import number_of

Resources = Mapping[str, float]
SPREAD_AFTER_S = 5.0
"""Seconds after which a place on one node is asked for again on several nodes."""
STRICT_PACK = "STRICT_PACK"
"""Ray's strategy of a place whose bundles must all be on one node."""
NODE_SHARE = 0.001
"""Amount that a process takes of a custom resource. Such a resource only marks the nodes to run on."""
_TINY = {"memory": 1}
"""Resources of a process that needs none: Ray refuses empty bundles, and every node has a byte of memory."""
_UNITS = {"CPU": ("CPU", "CPUs"), "GPU": ("GPU", "GPUs")}


def bundle(*, cpus: float = 0.0, gpus: float = 0.0, nodes: str | None = None) -> dict[str, float]:
    """Returns the resources of one process. `nodes`: the custom resource that marks the nodes it may run on."""
    asked = {"CPU": cpus, "GPU": gpus} | ({nodes: NODE_SHARE} if nodes else {})
    return {name: amount for name, amount in asked.items() if amount} or dict(_TINY)


def fitting(asked: Sequence[Resources], nodes: Sequence[Resources]) -> int:
    """Returns how many of the bundles fit on nodes with these resources. Each takes the first node with room."""
    free, placed = [dict(node) for node in nodes], 0
    for one in asked:
        node = next((node for node in free if _holds(node, one)), None)
        if node is not None:
            placed += 1
            for name, amount in one.items():
                node[name] -= amount
    return placed


def strategy(asked: Sequence[Resources], nodes: Sequence[Resources]) -> str:
    """Returns STRICT_PACK if some node is large enough for all bundles, else PACK."""
    return STRICT_PACK if any(fitting(asked, [node]) == len(asked) for node in nodes) else "PACK"


def lacking(asked: Sequence[Resources], free: Resources, total: Sequence[Resources]) -> str:
    """Returns why the bundles have no place, for example `needs 4 bundles of 1 GPU, and the cluster has 3`. `free`: of
    all nodes together, `total`: of each node."""
    places = fitting(asked, total)
    needs = f"needs {number_of(len(asked), 'bundle')} of {_named(asked[0])}"
    if places < len(asked):
        return f"{needs}, and the cluster has {places or 'none'}"
    return f"{needs}, and {min(fitting(asked, [free]), len(asked) - 1) or 'none'} of the cluster's is free"


class ClusterPlace:
    """A place with one bundle for each process. After `release`, `ask` may be called again."""

    def __init__(self, asked: Sequence[Resources]) -> None:
        self.asked = [dict(one) for one in asked]
        self._group: Any = None
        self._strategy = ""
        self._asked_at = 0.0
        self._granted = False

    def ask(self) -> None:
        """Asks the cluster for the place and returns at once."""
        self._ask(strategy(self.asked, total_nodes()))

    def _ask(self, strategy: str) -> None:
        from ray.util.placement_group import placement_group

        self._strategy, self._asked_at = strategy, time.monotonic()
        self._group = placement_group(self.asked, strategy=strategy)

    def granted(self) -> bool:
        """Whether all bundles are granted."""
        if self._group is None or self._granted:
            return self._granted
        from ray.util.placement_group import placement_group_table

        self._granted = placement_group_table(self._group).get("state") == "CREATED"
        if not self._granted and self._strategy == STRICT_PACK and len(self.asked) > 1 \
                and time.monotonic() - self._asked_at > SPREAD_AFTER_S:
            self._remove()
            self._ask("PACK")
        return self._granted

    def lacks(self) -> str:
        """Returns what the cluster lacks, as text; an empty string once the place is granted."""
        return "" if self.granted() else lacking(self.asked, free_resources(), total_nodes())

    def options(self, index: int, part: Resources | None = None) -> dict[str, Any]:
        """Returns the Ray options of an actor in bundle `index`, which takes `part` of it, or all."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        one = part or self.asked[index]
        custom = {name: amount for name, amount in one.items() if name not in ("CPU", "GPU", "memory")}
        return {"num_cpus": one.get("CPU", 0), "num_gpus": one.get("GPU", 0), "resources": custom,
                "scheduling_strategy": PlacementGroupSchedulingStrategy(
                    self._group, placement_group_bundle_index=index, placement_group_capture_child_tasks=False)}

    def release(self) -> None:
        """Gives the resources back. Ray ends the processes that still use them."""
        self._remove()

    def _remove(self) -> None:
        from ray.util.placement_group import remove_placement_group

        if self._group is not None:
            private_ray.attempt(partial(remove_placement_group, self._group), "to free a place")
        self._group, self._granted = None, False


class SharedGpus(ClusterPlace):
    """The GPUs that rollout workers and learner ranks share, one of each on every GPU.

    Ray puts two processes that ask for shares of a GPU on any GPU with room. Here each GPU is one bundle, and both
    processes run in that bundle. The bundles are kept until the run ends: a process that starts again finds its GPU,
    and Ray moves bundles whose node is lost.

    `one`: what the two processes of a GPU ask for, on each of `count` GPUs.
    """

    def __init__(self, one: Resources, count: int) -> None:
        super().__init__([{**one, "GPU": 1.0}] * count)

    def ask(self) -> None:
        """Asks for the bundles at the first call. After a later call, granted() looks anew whether all have a place."""
        if self._group is None:
            super().ask()
        elif self._granted:
            self._granted, self._asked_at = False, time.monotonic()  # Ray gets time to move bundles of a lost node

    def release(self) -> None:
        """Keeps the bundles, because other processes use them."""


class GpuShare:
    """The place of some processes, each on one of the shared GPUs. Its methods are those of ClusterPlace."""

    def __init__(self, shared_gpus: SharedGpus, asked: Sequence[Resources], *, first: int = 0) -> None:
        self.asked = [dict(one) for one in asked]
        self._shared_gpus = shared_gpus
        self._first = first

    def ask(self) -> None:
        self._shared_gpus.ask()

    def granted(self) -> bool:
        return self._shared_gpus.granted()

    def lacks(self) -> str:
        return self._shared_gpus.lacks()

    def options(self, index: int) -> dict[str, Any]:
        return self._shared_gpus.options(self._first + index, self.asked[index])

    def release(self) -> None:
        """Keeps the GPUs, because SharedGpus holds them until the run ends."""


ProcessPlace = ClusterPlace | GpuShare


def on_roomiest_node() -> dict[str, Any]:
    """Returns the Ray options of an actor on the node with the largest object store, or on any once that is lost."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    alive = [node for node in ray.nodes() if node["Alive"]]
    roomiest = max(alive, key=lambda node: node["Resources"].get("object_store_memory", 0.0))
    # For an actor that needs nothing, Ray takes any node, whatever the strategy.
    return {**_TINY, "scheduling_strategy": NodeAffinitySchedulingStrategy(roomiest["NodeID"], soft=True)}


def free_resources() -> Resources:
    """Returns the free resources of all nodes together."""
    import ray

    return ray.available_resources()


def total_nodes() -> list[Resources]:
    """Returns all resources of each living node."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _holds(node: Resources, one: Resources) -> bool:
    return all(node.get(name, 0.0) >= amount - 1e-9 for name, amount in one.items())


def _named(one: Resources) -> str:
    marked = [f"a node with {name}" for name in one if name not in (*_UNITS, "memory")]
    amounts = [f"{one[name]:g} {units[one[name] != 1]}" for name, units in _UNITS.items() if name in one]
    return " and ".join(amounts + marked) or "any node"
