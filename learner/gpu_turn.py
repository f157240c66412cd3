"""The learner's side of GPUs that it shares with rollout workers in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Protocol

from services.errors import DeadlineExceeded
from services.store.gpu_lease import WANTED, GpuLease
from services.telemetry.heartbeat import Heartbeat

POLL_S = 0.1


class Parked(Protocol):
    """A learner whose states can wait in host memory."""

    def park(self) -> None:
        """Moves them there."""
        ...

    def unpark(self) -> None:
        """Moves them back."""
        ...


@contextmanager
def gpu_turn(leases: Sequence[GpuLease], heartbeat: Heartbeat, *, check: Callable[[], None],
             wait_s: float) -> Iterator[None]:
    """Inside, all shared GPUs are the learner's. Raises what `check` raises while it waits, or DeadlineExceeded.

    If the block fails, the GPUs are not given: the learner's states still fill them, until its process has ended.
    """
    started = time.monotonic()
    heartbeat.doing(WANTED)
    leases[0].send_heartbeat(heartbeat)
    with ExitStack() as held:
        for lease in leases:
            held.callback(lease.give)
            while not lease.take():
                check()
                if time.monotonic() - started > wait_s:
                    raise DeadlineExceeded(f"a rollout worker kept its GPU for over {wait_s:g} s (learner.wait_s)")
                time.sleep(POLL_S)
        full = held.pop_all()
    heartbeat.doing("trains, while the sampler sleeps")
    leases[0].send_heartbeat(heartbeat)
    yield
    for lease in leases:
        lease.check()
    full.close()


@contextmanager
def unparked(learner: Parked) -> Iterator[None]:
    """Moves the learner's states to its GPUs for the block. If the block fails, they stay there: the learner ends."""
    learner.unpark()
    yield
    learner.park()
