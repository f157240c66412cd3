"""The communicators of a transfer: one link for each sender, with all receivers.

Torch's process groups are made here without a place in torch.distributed's registry, because a rank of the learner and
a process of vLLM each have a default group of their own already. On GPUs a link is NCCL, on CPUs gloo.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

BUCKET = 256 << 20
"""Bytes of one broadcast."""
LOOK_S = 0.0005


class Deadline:
    """The end of a round, so many seconds from now."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds until the end. Raises TimeoutError after it."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"not done in {self.seconds:g} s (weights.seconds)")
        return left


class Link:
    """A group of one sender (rank 0) and its receivers. All of them make it at the same time.

    `store`: the torch store in which they meet. `name`: of this link among those that meet there. Raises RuntimeError
    if some do not come until the deadline.
    """

    def __init__(self, store: Any, name: str, *, rank: int, world: int, device: torch.device,
                 deadline: Deadline) -> None:
        import torch.distributed as dist
        from torch._C._distributed_c10d import PrefixStore

        store, limit = PrefixStore(name, store), timedelta(seconds=deadline.left)
        store.set_timeout(limit)
        # NCCL waits for the others without a deadline, so it begins when all are known to be there.
        store.set(str(rank), "here")
        store.wait([str(other) for other in range(world)], limit)
        if device.type == "cpu":
            self._group: Any = dist.ProcessGroupGloo(store, rank, world, limit)
        else:
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timedelta(seconds=2 * deadline.seconds)  # torch ends the process after it
            self._group = dist.ProcessGroupNCCL(store, rank, world, options)

    def broadcast(self, stream: Tensor, deadline: Deadline) -> None:
        """Sends the stream to all receivers; on these, fills it. Raises RuntimeError or TimeoutError."""
        for at in range(0, len(stream), BUCKET):
            work = self._group.broadcast(stream[at : at + BUCKET], 0)
            while not work.is_completed():
                time.sleep(min(LOOK_S, deadline.left))
            work.wait()

    def close(self) -> None:
        """Ends the group. The others' unfinished broadcasts fail."""
        group, self._group = self._group, None
        if group is not None:
            group.abort()
