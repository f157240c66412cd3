"""A worker's part in transfers from GPU to GPU."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rollout.weights.receiver import RECEIVING, GpuReceiver
from services.records import Version
from services.weights.checksum import combined
from services.weights.pack import Entry
from services.weights.registry import Participant, Round

MEMBER = Participant(worker="one", processes=2)
MANIFEST = [Entry(name="w", shape=(2,), dtype="int64", offset=0)]
ROUND = Round(version=Version(incarnation=1, step=1, digest=combined(MANIFEST, [7])), way="nccl", manifest=MANIFEST,
              shares=[], members=[MEMBER], seconds=60)


class Slow:
    """An engine of two processes that have received a version once the registry was called three times meanwhile."""

    def __init__(self, *states: tuple[str, list[int]]) -> None:
        self.asked: list[Any] = []
        self.states, self.reported = states, asyncio.Event()

    async def call(self, method: str, **_: Any) -> list[Any]:
        if method == "receive_round":
            self.asked.clear()
        return list(self.states) if self.asked.count("call") >= 3 else [(RECEIVING, []), self.states[1]]

    async def ask(self, method: str, *values: Any) -> Round | None:
        self.asked.append(method)
        if method == "report":
            self.asked[-1] = values[-1]
            self.reported.set()
        return ROUND if method == "call" and not self.reported.is_set() else None


@pytest.mark.parametrize(("states", "report"), [
    ((("", [3]), ("", [4])), ""),
    ((("", [3]), ("", [5])), f"weights arrived with digest {combined(MANIFEST, [8])}"),
    ((("", [3]), ("RuntimeError: two: it is gone", [])), "RuntimeError: two: it is gone")])
async def test_a_worker_calls_while_it_receives_and_reports_how_it_ended(states, report):
    """Without the calls the learner would take it for dead. The digest is that of the sums of both processes."""
    engine: Any = Slow(*states)
    task = asyncio.create_task(GpuReceiver(engine, engine, MEMBER, engine.ask, address="127.0.0.1").run())
    async with asyncio.timeout(120):
        await engine.reported.wait()
    task.cancel()
    await asyncio.wait([task])
    assert report in engine.asked
    assert engine.asked[-1] == "leave"
