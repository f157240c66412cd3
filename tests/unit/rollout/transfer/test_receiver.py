"""A worker's part in transfers."""

from __future__ import annotations

import asyncio
from typing import Any

from rollout.transfer.inbox import HELD, RECEIVING
from rollout.transfer.receiver import Receiver
from services.records import Version
from services.weights.rounds import Participant, Round

MEMBER = Participant(worker="one")
ROUND = Round(version=Version(incarnation=1, step=1), way="nccl", manifest=[], shares=[], members=[MEMBER], seconds=60)


class Slow:
    """An engine that has received a version once the meeting was called three times meanwhile."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.told = asyncio.Event()

    async def call(self, method: str, **_: Any) -> list[str]:
        if method == "init_weight_transfer_engine":
            self.asked.clear()
        return [HELD if self.asked.count("call") >= 3 else RECEIVING]

    async def ask(self, method: str, *_: Any) -> Round | None:
        self.asked.append(method)
        if method == "tell":
            self.told.set()
        return ROUND if method == "call" and not self.told.is_set() else None


async def test_a_worker_calls_while_it_receives():
    """Else the learner would take it for dead."""
    engine: Any = Slow()
    task = asyncio.create_task(Receiver(engine, MEMBER, engine.ask, address="127.0.0.1").run())
    async with asyncio.timeout(120):
        await engine.told.wait()
    task.cancel()
    await asyncio.wait([task])
    assert engine.asked[-1] == "leave"
