"""Places on a Ray cluster: resources for one process or for a gang, granted all together or not at all.

A place is a Ray placement group with one bundle for each process. A gang is a group of processes that run together,
such as the learner's ranks. They share a node if one has room for all of them now, else they use as few nodes as
possible. While there is no room, the place says what the cluster lacks.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from deploy.members import private_ray

Resources = Mapping[str, float]
LOOK_AGAIN_S = 5.0
"""Seconds after which a place on one node is asked for again on several nodes, if that node has filled up meanwhile."""
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
    """Returns how many of the bundles fit on nodes with these free resources. Each takes the first node with room."""
    free, placed = [dict(node) for node in nodes], 0
    for one in asked:
        node = next((node for node in free if _holds(node, one)), None)
        if node is not None:
            placed += 1
            for name, amount in one.items():
                node[name] -= amount
    return placed


def strategy(asked: Sequence[Resources], free: Sequence[Resources]) -> str:
    """Returns STRICT_PACK if some node has room for all bundles now, else PACK."""
    alone = any(fitting(asked, [node]) == len(asked) for node in free)
    return STRICT_PACK if alone else "PACK"


def lacking(asked: Sequence[Resources], free: Sequence[Resources], total: Sequence[Resources]) -> str:
    """Returns why the bundles have no place, for example `needs 4 bundles of 1 GPU, and the cluster has 3`."""
    whole = fitting(asked, total)
    needs = f"needs {_bundles(len(asked))} of {_named(asked[0])}"
    if whole < len(asked):
        return f"{needs}, and the cluster has {whole or 'none'}"
    return f"{needs}, and {fitting(asked, free) or 'none'} of the cluster's is free"


class ProcessPlace(Protocol):
    """A place that was asked for: a ClusterPlace, or a part of GPUs that others use too."""

    asked: list[dict[str, float]]

    def ask(self) -> None: ...

    def granted(self) -> bool: ...

    def lacks(self) -> str: ...

    def options(self, index: int) -> dict[str, Any]: ...

    def release(self) -> None: ...


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
        from ray.util.placement_group import placement_group

        self._strategy, self._asked_at = strategy(self.asked, free_nodes()), time.monotonic()
        self._group = placement_group(self.asked, strategy=self._strategy)

    def granted(self) -> bool:
        """Whether all bundles are granted."""
        if self._group is None or self._granted:
            return self._granted
        from ray.util.placement_group import placement_group_table

        self._granted = placement_group_table(self._group).get("state") == "CREATED"
        late = time.monotonic() - self._asked_at > LOOK_AGAIN_S
        if not self._granted and late and self._misfits(strategy(self.asked, free_nodes())):
            self._remove()
            self.ask()
        return self._granted

    def _misfits(self, better: str) -> bool:
        """Whether a place that is not granted is asked for again. `better`: the strategy that fits the nodes now."""
        return self._strategy != better

    def lacks(self) -> str:
        """Returns what the cluster lacks, as text; an empty string once the place is granted."""
        return "" if self.granted() else lacking(self.asked, free_nodes(), total_nodes())

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
            private_ray.tell(partial(remove_placement_group, self._group), "to free a place")
        self._group, self._granted = None, False


def on_roomiest_node() -> dict[str, Any]:
    """Returns the Ray options of an actor on the node with the largest object store, or on any once that is lost."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    alive = [node for node in ray.nodes() if node["Alive"]]
    roomiest = max(alive, key=lambda node: node["Resources"].get("object_store_memory", 0.0))
    # For an actor that needs nothing, Ray takes any node, whatever the strategy.
    return {**_TINY, "scheduling_strategy": NodeAffinitySchedulingStrategy(roomiest["NodeID"], soft=True)}


def free_nodes() -> list[Resources]:
    """Returns the free resources of each living node."""
    from ray._private.state import available_resources_per_node  # Ray has no public function for it

    return [node for node in available_resources_per_node().values() if node]


def total_nodes() -> list[Resources]:
    """Returns all resources of each living node."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _holds(node: Resources, one: Resources) -> bool:
    return all(node.get(name, 0.0) >= amount - 1e-9 for name, amount in one.items())


def _bundles(count: int) -> str:
    return "1 bundle" if count == 1 else f"{count} bundles"


def _named(one: Resources) -> str:
    marked = [f"a node with {name}" for name in one if name not in (*_UNITS, "memory")]
    amounts = [f"{one[name]:g} {units[one[name] != 1]}" for name, units in _UNITS.items() if name in one]
    return " and ".join(amounts + marked) or "any node"
