"""The worker's side of a GPU that it shares with a learner. Its engine sleeps while the learner trains."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from services.errors import DeadlineExceeded
from services.store.gpu_lease import GpuLease

POLL_S = 0.25


class Sleeper(Protocol):
    """An engine that can give up its memory for a while."""

    async def sleep(self) -> None:
        """Gives up its memory."""
        ...

    async def wake(self) -> None:
        """Takes its memory back."""
        ...


class GpuTurns:
    """A worker's turns on its shared GPU. `wait_s` bounds each wait for the GPU, in seconds."""

    def __init__(self, lease: GpuLease, *, wait_s: float) -> None:
        self._lease = lease
        self._wait_s = wait_s

    async def take(self) -> None:
        """Returns once the GPU is this worker's. A learner that wants it goes first. Raises DeadlineExceeded."""
        started = time.monotonic()
        while await asyncio.to_thread(self._lease.wanted) or not await asyncio.to_thread(self._lease.take):
            if time.monotonic() - started > self._wait_s:
                raise DeadlineExceeded(f"the learner kept the GPU for over {self._wait_s:g} s (learner.wait_s)")
            await asyncio.sleep(POLL_S)

    async def give(self) -> None:
        """Gives up the GPU, if it is held."""
        await asyncio.to_thread(self._lease.give)

    async def turn(self, engine: Sleeper, on_wait: Callable[[], object]) -> None:
        """If the learner wants the GPU: puts the engine to sleep, gives up the GPU, takes it back and wakes the engine.
        `on_wait` is called once the GPU is given up.

        Raises LeaseLost if the GPU was lost while the engine filled it, DeadlineExceeded, and EngineFault.
        """
        self._lease.check()
        if await asyncio.to_thread(self._lease.wanted):
            await engine.sleep()
            await self.give()
            on_wait()
            await self.take()
            await engine.wake()
