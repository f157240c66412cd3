"""A pool of simulators, one for each game in play. The games that a simulator has played before change nothing."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable

from envservice.scienceworld.simulator import Simulator

GAMES = 200
"""Games of one JVM before a new one replaces it, so that no memory piles up."""


class SimulatorLease:
    """One simulator for one game. It returns to the pool when the game drops it, in whatever way."""

    def __init__(self, pool: Pool, simulator: Simulator) -> None:
        self.simulator = simulator
        self._back = weakref.finalize(self, pool.take_back, simulator)
        self._back.atexit = False

    def end(self) -> None:
        """Returns the simulator to the pool."""
        self._back()

    def scrap(self) -> None:
        """Ends a simulator that has failed."""
        self._back.detach()
        self.simulator.end()


class Pool:
    """As many simulators as games were ever played at once. Operations are atomic, since leases end in any thread."""

    def __init__(self, start: Callable[[], Simulator]) -> None:
        self._start = start
        self._idle: deque[Simulator] = deque()
        self._started: weakref.WeakSet[Simulator] = weakref.WeakSet()
        self._closed = False

    def lease(self) -> SimulatorLease:
        """Lends an idle simulator, or a new one. Raises JavaError."""
        while self._idle:
            simulator = self._idle.pop()
            if simulator.runs():
                return SimulatorLease(self, simulator)
            simulator.end()
        simulator = self._start()
        self._started.add(simulator)
        return SimulatorLease(self, simulator)

    def take_back(self, simulator: Simulator) -> None:
        """Takes a simulator back, for leases."""
        if self._closed or simulator.games >= GAMES:
            simulator.end()
        else:
            self._idle.append(simulator)

    def pids(self) -> list[int]:
        """Counts the running processes, busy and idle."""
        return sorted(simulator.pid for simulator in list(self._started) if simulator.runs())

    def close(self) -> None:
        """Ends all simulators. A game in play fails at its next step."""
        self._closed = True
        self._idle.clear()
        for simulator in list(self._started):
            simulator.end()
