"""Simulators on loan: one for each game that is being played. Which games one has played before changes nothing."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable

from envservice.scienceworld.simulator import Simulator

GAMES = 200
"""Games of one JVM before it makes room for a new one, so that nothing can pile up in it."""


class SimulatorLease:
    """One simulator for one game. It comes back when the game lets go of it, however that happens."""

    def __init__(self, pool: Pool, simulator: Simulator) -> None:
        self.simulator = simulator
        self._back = weakref.finalize(self, pool.take_back, simulator)
        self._back.atexit = False

    def end(self) -> None:
        """Gives it back."""
        self._back()

    def scrap(self) -> None:
        """Ends it: it has failed."""
        self._back.detach()
        self.simulator.end()


class Pool:
    """As many simulators as games were ever played at once. Its parts are atomic, as leases end in any thread."""

    def __init__(self, start: Callable[[], Simulator]) -> None:
        self._start = start
        self._idle: deque[Simulator] = deque()
        self._started: weakref.WeakSet[Simulator] = weakref.WeakSet()
        self._closed = False

    def lease(self) -> SimulatorLease:
        """An idle one, or else a new one. Raises JavaError."""
        while self._idle:
            simulator = self._idle.pop()
            if simulator.runs():
                return SimulatorLease(self, simulator)
            simulator.end()
        simulator = self._start()
        self._started.add(simulator)
        return SimulatorLease(self, simulator)

    def take_back(self, simulator: Simulator) -> None:
        """For leases."""
        if self._closed or simulator.games >= GAMES:
            simulator.end()
        else:
            self._idle.append(simulator)

    def pids(self) -> list[int]:
        """Processes that run, those of games and idle ones."""
        return sorted(simulator.pid for simulator in list(self._started) if simulator.runs())

    def close(self) -> None:
        """Ends them all; a game that goes on fails at its next step."""
        self._closed = True
        self._idle.clear()
        for simulator in list(self._started):
            simulator.end()
