"""The connection of transfers: senders and receivers are one torch process group, NCCL on GPUs, gloo on CPUs.

The group is not registered with torch.distributed, because a rank of the learner and a process of vLLM each have a
default group of their own already.

If a process dies, NCCL reports it to other nodes, but not within a node. If a process hangs, NCCL never reports it. So
every wait polls whether the round has ended: at its deadline, or earlier because a member has failed or rank 0 of the
learner misses one. The reason of an early end is a key of the torch store in which the members met.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from services.process.env_variables import env_variable
from services.process.threads import started

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from services.process.rendezvous import Rendezvous

BUCKET = 256 << 20
"""Bytes of one broadcast."""
LOOK_S = 0.0005
CONNECT_LOOK_S = 0.02
ASK_EVERY_S = 0.25
"""Seconds between two checks whether the round has ended early."""
BLOCKING_WAIT = "TORCH_NCCL_BLOCKING_WAIT"
"""The variable by which torch makes a group of NCCL without a watchdog. Other groups of this process keep theirs.

A watchdog that finds an error of NCCL ends the process. A link needs none: whoever looks at its broadcast finds it.
"""


class Link:
    """One member of the group of all senders and receivers; the senders are the first ranks.

    It connects in its first round and stays connected for later ones. If it raises, its owner must close it and make a
    new one for the next round. `where`: the place that `meeting` joins.
    """

    def __init__(self, meeting: Rendezvous, where: str, *, rank: int, world: int, device: torch.device) -> None:
        self.where = where
        self._meeting, self._rank, self._world, self._device = meeting, rank, world, device
        self._store: Any = None
        self._group: Any = None
        self._work: Any = None

    def begin(self, name: str, seconds: float, abort_reason: Callable[[], str] = str) -> None:
        """Begins the round `name`, which lasts `seconds` at most. Raises as `buckets` does.

        `abort_reason`, on rank 0, returns why the round has to end early, or "".
        """
        self._key, self._seconds, self._abort_reason = f"end/{name}", seconds, abort_reason
        self._asked = time.monotonic()
        self._deadline = self._asked + seconds
        if self._store is None:
            self._store = self._meeting.join(self.where, seconds)
        if self._group is None:
            self._group = self._connect()

    def buckets(self, sizes: Sequence[int], own: Tensor | None = None) -> Iterator[tuple[int, int, Tensor]]:
        """Broadcasts the streams of all senders. Yields buckets: (sender, byte offset in its stream, uint8 tensor).

        `sizes`: bytes of each sender's stream. `own`: this sender's stream; None on receivers. A bucket is valid until
        the next. Raises TimeoutError after the deadline, RuntimeError if the round has ended early.
        """
        import torch

        others = [size for sender, size in enumerate(sizes) if sender != self._rank]
        memory = torch.empty(min(BUCKET, max(others, default=0)), dtype=torch.uint8, device=self._device)
        for sender, size in enumerate(sizes):
            for at in range(0, size, BUCKET):
                mine = own if sender == self._rank else None
                bucket = memory[: size - at] if mine is None else mine[at : at + BUCKET]
                self._broadcast(bucket, sender)
                yield sender, at, bucket

    def abort(self, reason: str) -> None:
        """Ends the round for all members. The first reason counts."""
        if self._store is not None and not self._store.check([self._key]):
            self._store.set(self._key, reason)

    def close(self) -> None:
        """Disconnects. Unfinished broadcasts of the other members fail at their next check, or before."""
        group, work = self._group, self._work
        self._group = self._work = None  # a broadcast of gloo keeps its connections, too
        if group is None:
            return
        group.abort()
        if work is not None and not work.is_completed():
            threading.Thread(target=_keep, args=(group, work), daemon=False).start()

    def _broadcast(self, bucket: Tensor, sender: int) -> None:
        self._work = self._group.broadcast(bucket, sender)
        while not self._work.is_completed():  # also True after an error, which `wait` then raises
            time.sleep(LOOK_S)
            self._look()
        try:
            self._work.wait()
        except RuntimeError:
            self._raise_if_aborted()  # another member has closed its link, of which gloo knows nothing else
            raise

    def _look(self) -> None:
        now = time.monotonic()
        if now >= self._deadline:
            raise TimeoutError(f"not done in {self._seconds:g} s (weights.seconds)")
        if now - self._asked >= ASK_EVERY_S:
            self._asked = now
            if reason := self._abort_reason():
                self.abort(reason)
            self._raise_if_aborted()

    def _raise_if_aborted(self) -> None:
        if self._store.check([self._key]):
            raise RuntimeError(self._store.get(self._key).decode())

    def _connect(self) -> Any:
        """Returns the connected group. If the round ends first, raises, and the connecting thread aborts the group."""
        from torch._C._distributed_c10d import PrefixStore

        # NCCL waits for the others without a deadline, so it begins only when all members have set a key here. The
        # prefix differs from the group's, because NCCL's own keys are numbers too.
        here = PrefixStore("here", self._store)
        here.set(str(self._rank), "here")
        while not here.check([str(rank) for rank in range(self._world)]):
            time.sleep(CONNECT_LOOK_S)
            self._look()
        store = PrefixStore("group", self._store)
        limit = timedelta(seconds=self._seconds)  # of each broadcast, also of the rounds that follow
        store.set_timeout(limit)
        # A member that dies while all connect makes the others wait for it, and NCCL then waits for ever.
        made = started(partial(connected_group, store, self._rank, self._world, self._device, limit), "link")
        try:
            while not made.done():
                time.sleep(CONNECT_LOOK_S)
                self._look()
        except BaseException:
            made.add_done_callback(_abort)
            raise
        return made.result()


def connected_group(store: Any, rank: int, world: int, device: torch.device, limit: timedelta) -> Any:
    """Returns a process group that is connected: NCCL connects at the first broadcast."""
    import torch
    import torch.distributed as dist

    if device.type == "cpu":
        group: Any = dist.ProcessGroupGloo(store, rank, world, limit)
    else:
        torch.cuda.set_device(device)  # of this thread
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = 2 * limit  # `wait` raises after it
        with env_variable(BLOCKING_WAIT, "1"):
            group = dist.ProcessGroupNCCL(store, rank, world, options)
    group.broadcast(torch.zeros(1, dtype=torch.uint8, device=device), 0).wait()
    return group


def _abort(made: Future[Any]) -> None:
    with suppress(Exception):
        made.result().abort()


def _keep(group: Any, work: Any) -> None:
    """Holds a group of gloo until its broadcast has failed: its deletion waits for that, with the interpreter's lock.
    """
    while not work.is_completed():
        time.sleep(ASK_EVERY_S)
    del group
