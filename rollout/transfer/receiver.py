"""Takes part in transfers: asks for rounds, lets the engine's processes receive, and tells how each round ended.

It calls the meeting (services/weights/meeting.py) again and again, also in a round, so that the learner knows that the
worker is there.
A version that has come waits in the engine's processes until the worker follows the pointer. If anything fails, the
worker takes the version from host memory as ever.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from rollout.engine.engine import Engine
from rollout.transfer.inbox import HELD, RECEIVING
from services.records import Version
from services.telemetry.logs import get_logger
from services.weights.rounds import Participant, Round

CALL_S = 0.25
LOOK_S = 0.05
ASK_S, LEAVE_S = 30.0, 2.0
Ask = Callable[..., Awaitable[Any]]
"""Calls a method of the meeting. Returns None if the meeting is lost for the moment."""
log = get_logger("receiver")


class Receiver:
    """A worker's part in transfers. `address`: of its machine."""

    def __init__(self, engine: Engine, member: Participant, ask: Ask, *, address: str) -> None:
        self._engine, self._member, self._ask, self._address = engine, member, ask, address
        self._held: Version | None = None
        self._swapping = asyncio.Lock()  # a new round takes the memory of the version before

    async def run(self) -> None:
        """Takes part in rounds until it is cancelled. Raises EngineFault."""
        try:
            while True:
                found: Round | None = await self._asked("call", self._member)
                if found is not None:
                    calling = asyncio.create_task(self._keep_calling())
                    try:
                        await self._take(found)
                    finally:
                        calling.cancel()
                await asyncio.sleep(CALL_S)
        finally:
            await self._asked("leave", self._member.worker, seconds=LEAVE_S)

    async def _keep_calling(self) -> None:
        while True:
            await asyncio.sleep(CALL_S)
            await self._asked("call", self._member)

    async def _take(self, found: Round) -> None:
        first = found.first_receiver(self._member.worker)
        async with self._swapping:
            self._held = None
            await self._engine.call("init_weight_transfer_engine", init_info={
                "found": msgspec.json.encode(found), "first": first, "shared_gpu": self._member.shared_gpu,
                "address": self._address})
        while RECEIVING in (states := await self._engine.call("transfer_state")):  # noqa: ASYNC110 - another process
            await asyncio.sleep(LOOK_S)
        faults = [state for state in states if state != HELD]
        if faults:
            log.warning("transfer failed", version=found.version.short, reason=faults[0])
        else:
            self._held = found.version
        await self._asked("tell", self._member.worker, found.version, faults[0] if faults else "")

    async def _asked(self, *what: Any, seconds: float = ASK_S) -> Any:
        """Asks the meeting. Returns None if it gives no answer: it may be busy with a version for host memory."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self._ask(*what)

    async def swap(self, version: Version) -> bool:
        """Loads the version if it has come. Returns whether it had. Raises EngineFault."""
        async with self._swapping:
            if self._held != version:
                return False
            await self._engine.swap(version)
            return True
