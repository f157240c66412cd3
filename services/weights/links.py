"""The communicators of a transfer: one link for each sender, with all receivers.

Torch's process groups are made here without a place in torch.distributed's registry, because a rank of the learner and
a process of vLLM each have a default group of their own already. On GPUs a link is NCCL, on CPUs gloo.

Between nodes NCCL reports an error to the others if a process dies. Within a node it does not, and nowhere if a process
hangs. So nobody waits in it without looking whether the round has ended: at its deadline, or earlier, because rank 0 of
the learner misses a member and tells all others through the store in which the links met.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from services.process.environment import variable

if TYPE_CHECKING:
    import torch
    from torch import Tensor

BUCKET = 256 << 20
"""Bytes of one broadcast. A multiple of every item size."""
LOOK_S = 0.0005
JOIN_LOOK_S = 0.02
ASK_EVERY_S = 0.25
"""Seconds between two questions whether the round has ended early."""
BLOCKING_WAIT = "TORCH_NCCL_BLOCKING_WAIT"
"""The variable by which torch makes a group of NCCL without a watchdog. Other groups of this process keep theirs.

A watchdog that finds an error of NCCL ends the process: by itself, or, with TORCH_NCCL_ASYNC_ERROR_HANDLING=2, through
the monitor of the process's first group, which it asks for a dump. A link needs none, because whoever looks at its
broadcast finds the error.
"""
_ENVIRONMENT = threading.Lock()
"""Held while the environment is that of a link. Links of several senders are made at once, each in its own thread."""


class RoundEnd:
    """The end of a round: so many seconds from now, or earlier if `lost` says why.

    `lost` is for rank 0 of the learner, and returns "" as long as nobody is missed. The others are told by `tell`.
    """

    def __init__(self, seconds: float, lost: Callable[[], str] = str) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds
        self._lost = lost
        self._store: Any = None
        self._key = ""
        self._asked = time.monotonic()

    def meets(self, store: Any, name: str) -> None:
        """Tells and hears of an early end through this torch store. `name`: of the round, among those that meet there.
        """
        self._store, self._key = store, f"end/{name}"

    def tell(self, why: str) -> None:
        """Ends the round for all who look."""
        if self._store is not None:
            self._store.set(self._key, why)

    @property
    def left(self) -> float:
        """Seconds until the deadline. Raises TimeoutError after it."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"not done in {self.seconds:g} s (weights.seconds)")
        return left

    def look(self) -> None:
        """Raises TimeoutError after the deadline, and RuntimeError if the round has ended early."""
        now = self._end - self.left
        if now - self._asked < ASK_EVERY_S:
            return
        self._asked = now
        if why := self._lost():
            self.tell(why)
            raise RuntimeError(why)
        self.hear()

    def hear(self) -> None:
        """Raises RuntimeError if somebody has told of an early end."""
        if self._store is not None and self._store.check([self._key]):
            raise RuntimeError(self._store.get(self._key).decode())


class Link:
    """A group of one sender (rank 0) and its receivers. All of them make it at the same time.

    `store`: the torch store in which they meet. `name`: of this link among those that meet there. Raises RuntimeError
    or TimeoutError if the round ends before all have come.
    """

    def __init__(self, store: Any, name: str, *, rank: int, world: int, device: torch.device, end: RoundEnd) -> None:
        from torch._C._distributed_c10d import PrefixStore

        # NCCL waits for the others without a deadline, so it begins when all are known to be there. The marks are not
        # among the keys of the group: NCCL's own are numbers too.
        here = PrefixStore(f"{name}/here", store)
        here.set(str(rank), "here")
        while not here.check([str(other) for other in range(world)]):
            time.sleep(JOIN_LOOK_S)
            end.look()
        store = PrefixStore(f"{name}/group", store)
        limit = timedelta(seconds=end.seconds)  # of each broadcast, also of the rounds that follow
        store.set_timeout(limit)
        self._group: Any = _in_time(partial(_connected, store, rank, world, device, limit), end)
        self._device = device
        self._work: Any = None

    def send(self, stream: Tensor, end: RoundEnd) -> None:
        """Sends the stream to all receivers. Raises RuntimeError or TimeoutError."""
        for at in range(0, len(stream), BUCKET):
            self._broadcast(stream[at : at + BUCKET], end)

    def receive(self, size: int, end: RoundEnd) -> Iterator[Tensor]:
        """Yields a stream of so many bytes in buckets. Each is valid until the next. Raises as `send`."""
        import torch

        memory = torch.empty(min(size, BUCKET), dtype=torch.uint8, device=self._device)
        for at in range(0, size, BUCKET):
            bucket = memory[: size - at]
            self._broadcast(bucket, end)
            yield bucket

    def _broadcast(self, bucket: Tensor, end: RoundEnd) -> None:
        self._work = self._group.broadcast(bucket, 0)
        while not self._work.is_completed():  # which it also is after an error, and then `wait` raises that
            time.sleep(LOOK_S)
            end.look()
        try:
            self._work.wait()
        except RuntimeError:
            end.hear()  # whoever heard of the end first has closed the link, and gloo knows that alone
            raise

    def close(self) -> None:
        """Ends the group. The others' unfinished broadcasts fail, at the latest when they look."""
        group, work = self._group, self._work
        self._group = self._work = None  # a broadcast of gloo keeps its connections, too
        if group is None:
            return
        group.abort()
        if work is not None and not work.is_completed():
            threading.Thread(target=_keep, args=(group, work), daemon=False).start()


def _connected(store: Any, rank: int, world: int, device: torch.device, limit: timedelta) -> Any:
    """Returns a process group that is connected: NCCL connects at the first broadcast."""
    import torch
    import torch.distributed as dist

    if device.type == "cpu":
        group: Any = dist.ProcessGroupGloo(store, rank, world, limit)
    else:
        torch.cuda.set_device(device)  # of this thread
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = 2 * limit  # `wait` raises after it
        with _ENVIRONMENT, variable(BLOCKING_WAIT, "1"):
            group = dist.ProcessGroupNCCL(store, rank, world, options)
    group.broadcast(torch.zeros(1, dtype=torch.uint8, device=device), 0).wait()
    return group


def _in_time(connect: Callable[[], Any], end: RoundEnd) -> Any:
    """Returns the group that `connect` makes. If the round ends before, `connect` is left to its thread.

    A member that dies while all connect makes the others wait for it, and NCCL then waits for ever.
    """
    made: Future[Any] = Future()

    def run() -> None:
        try:
            made.set_result(connect())
        except BaseException as error:
            made.set_exception(error)

    threading.Thread(target=run, name="link", daemon=True).start()
    try:
        while not made.done():
            time.sleep(JOIN_LOOK_S)
            end.look()
    except BaseException:
        made.add_done_callback(_abort)
        raise
    return made.result()


def _abort(made: Future[Any]) -> None:
    if made.exception() is None:
        made.result().abort()


def _keep(group: Any, work: Any) -> None:
    """Holds a group of gloo until its broadcast has failed: its deletion waits for that, with the interpreter's lock.
    """
    while not work.is_completed():
        time.sleep(ASK_EVERY_S)
    del group
