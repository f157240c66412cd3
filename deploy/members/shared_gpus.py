"""The GPUs that rollout workers and learner ranks share, one of each on every GPU.

Ray puts two processes that ask for shares of a GPU on any GPU with room. Here each GPU is one bundle of a placement
group, and both processes run in that bundle. The bundles are kept until the run ends: a process that starts again finds
its GPU, and Ray moves bundles whose node is lost. If all bundles were on one node and no other node has room for all,
Ray cannot move them: then they are asked for again, on several nodes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from deploy.members.placement import STRICT_PACK, ClusterPlace, Resources


class SharedGpus(ClusterPlace):
    """All shared GPUs of a run. `one`: what the two processes of a GPU ask for, on each of `count` GPUs."""

    def __init__(self, one: Resources, count: int) -> None:
        super().__init__([{**one, "GPU": 1.0}] * count)

    def ask(self) -> None:
        """Asks once. Later calls look again whether all bundles have their place."""
        if self._group is None:
            super().ask()
        elif self._granted:
            self._granted, self._asked_at = False, time.monotonic()  # Ray gets time to move bundles of a lost node

    def _misfits(self, better: str) -> bool:
        """Whether all bundles must be on one node and none has room: no process can be in any of them.

        Bundles on several nodes stay: processes may be in some of them, and Ray moves the others to any node.
        """
        return self._strategy == STRICT_PACK != better

    def release(self) -> None:
        """Keeps the bundles, because other processes use them."""


class GpuShare:
    """The place of some processes, each on one of the shared GPUs. Its methods are those of ClusterPlace."""

    def __init__(self, shared_gpus: SharedGpus, asked: Sequence[Resources], *, first: int = 0) -> None:
        self.asked = [dict(one) for one in asked]
        self._shared_gpus = shared_gpus
        self._first = first

    def ask(self) -> None:
        """Asks the cluster for all shared GPUs and returns at once."""
        self._shared_gpus.ask()

    def granted(self) -> bool:
        """Whether the cluster has given all shared GPUs."""
        return self._shared_gpus.granted()

    def lacks(self) -> str:
        """Returns what the cluster lacks, as text; an empty string once the GPUs are granted."""
        return self._shared_gpus.lacks()

    def options(self, index: int) -> dict[str, Any]:
        """Returns the Ray options of process `index`."""
        return self._shared_gpus.options(self._first + index, self.asked[index])

    def release(self) -> None:
        """Ends no process and keeps the GPUs."""
