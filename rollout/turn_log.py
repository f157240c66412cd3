"""Keeps the finished turns of all episodes of a worker in the store, so that its death costs one turn at most."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from services.records import PlayedTurn
from services.store.store import Claim

PAUSE_S = 0.02
"""Seconds between two writes. One write has all turns that were finished meanwhile."""
Entry = tuple[Claim, int, PlayedTurn]
"""A claim, the index of its turn, and the turn."""


class TurnLog:
    """A queue of finished turns and the loop that writes them. Episodes never wait for it.

    A turn that is written after its episode was committed is refused by the store.
    """

    def __init__(self, write: Callable[[Sequence[Entry]], Awaitable[None]]) -> None:
        self._write = write
        self._queue: list[Entry] = []
        self._filled = asyncio.Event()

    def add(self, claim: Claim, index: int, turn: PlayedTurn) -> None:
        """Queues a finished turn."""
        self._queue.append((claim, index, turn))
        self._filled.set()

    async def run(self) -> None:
        """Writes until cancelled. Raises StoreFault."""
        while True:
            await self._filled.wait()
            self._filled.clear()
            turns, self._queue = self._queue, []
            await self._write(turns)
            await asyncio.sleep(PAUSE_S)
