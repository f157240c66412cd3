"""A worker's end of the weight channel: HostReceiver, and GpuReceiver in front of it (services/weights/channel.py).

GpuReceiver calls the registry every CALL_S, also in a round, so that the learner knows that the worker is there. A
received version waits in the engine's processes until the worker follows the pointer to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from rollout.engine.engine import Engine
from services.errors import DeadlineExceeded, WrongWeights
from services.records import Version
from services.telemetry.logs import get_logger
from services.weights.canary import Canary
from services.weights.checksum import combined
from services.weights.pack import Packed
from services.weights.registry import Participant, Round

CALL_S = 0.25
LOOK_S = 0.05
RECEIVING = "receiving"
"""State of an engine's process in a round (inbox.py, which imports torch)."""
ASK_S, LEAVE_S = 30.0, 2.0
Fetch = Callable[[Version, str], Awaitable[Packed | None]]
"""Returns the weights of a version, given the folder of its export ("" if unknown); None if nobody has them now."""
Ask = Callable[..., Awaitable[Any]]
"""Calls a method of the registry. Returns None if the registry is unavailable."""
log = get_logger("receiver")


class HostReceiver:
    """Receives versions from host memory. `seconds`: deadline of a fetch (rollout.update_seconds)."""

    def __init__(self, engine: Engine, fetch: Fetch, *, seconds: float) -> None:
        self._engine, self._fetch, self._seconds = engine, fetch, seconds

    async def run(self) -> None:
        """Waits until it is cancelled: host memory needs no work between two versions."""
        await asyncio.Event().wait()

    async def receive(self, version: Version, export: str, canary: Canary | None = None) -> float | None:
        """Fetches a version and loads it. See WeightReceiver."""
        try:
            async with asyncio.timeout(self._seconds):
                packed = await self._fetch(version, export)
        except TimeoutError as error:
            raise DeadlineExceeded(f"no weights of {version.short} within {self._seconds:.0f} s "
                                   "(rollout.update_seconds)") from error
        if packed is None:
            return None
        started = time.monotonic()
        await self._engine.update(version, packed.manifest, packed.buffer, canary)
        return time.monotonic() - started


class GpuReceiver:
    """Receives versions from GPU to GPU, and through `host` if a transfer failed. `address`: of the worker's machine.
    """

    def __init__(self, engine: Engine, host: HostReceiver, member: Participant, ask: Ask, *, address: str) -> None:
        self._engine, self._host, self._member, self._ask, self._address = engine, host, member, ask, address
        self._received: Version | None = None
        self._wrong = False
        """Whether the engine played other weights than it was sent. The worker then joins no more rounds."""
        self._swapping = asyncio.Lock()  # a new round overwrites the memory of the previous version

    async def run(self) -> None:
        """Takes part in rounds until it is cancelled, or the engine played wrong weights. Raises EngineFault."""
        receiving: asyncio.Task[None] | None = None
        try:
            while not self._wrong:
                if receiving is not None and receiving.done():  # first: the call would return the same round again
                    receiving = receiving.result()
                transfer: Round | None = await self._asked("call", self._member)
                if receiving is None and transfer is not None:
                    receiving = asyncio.create_task(self._take(transfer))
                await asyncio.sleep(CALL_S)
        finally:
            if receiving is not None:
                receiving.cancel()
            await self._asked("leave", self._member.worker, seconds=LEAVE_S)
        await self._host.run()

    async def receive(self, version: Version, export: str, canary: Canary | None = None) -> float | None:
        """Swaps in the version if it has been received, else loads it from host memory. See WeightReceiver."""
        started = time.monotonic()
        async with self._swapping:
            if self._received == version and not self._wrong:
                try:
                    await self._engine.swap(version, canary)
                    return time.monotonic() - started
                except WrongWeights as fault:
                    self._wrong = True
                    log.warning("wrong weights", version=version.short, reason=str(fault),
                                then="this worker takes versions from host memory from now on")
        return await self._host.receive(version, export, canary)

    async def _take(self, transfer: Round) -> None:
        async with self._swapping:
            self._received = None
            await self._engine.call("receive_round", transfer=msgspec.json.encode(transfer),
                                    first=transfer.first_receiver(self._member.worker),
                                    shared_gpu=self._member.shared_gpu, address=self._address)
        states, sums = [RECEIVING], list[list[int]]()
        while RECEIVING in states:
            await asyncio.sleep(LOOK_S)
            states, sums = zip(*await self._engine.call("transfer_state"), strict=True)
        fault = next(filter(None, states), "") or _wrong_digest(transfer, sums)
        if fault:
            log.warning("transfer failed", version=transfer.version.short, reason=fault)
        else:
            self._received = transfer.version
        await self._asked("report", self._member.worker, transfer.version, fault)

    async def _asked(self, *call: Any, seconds: float = ASK_S) -> Any:
        """Asks the registry. Returns None if it gives no answer: it may be busy with a version for host memory."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self._ask(*call)


def _wrong_digest(transfer: Round, sums: Sequence[list[int]]) -> str:
    digest = combined(transfer.manifest, *sums)
    return "" if digest == transfer.version.digest else f"weights arrived with digest {digest}"
