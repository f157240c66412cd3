"""Gold paths: the simulator's own solutions, which it finds by its knowledge of the world, not by reading."""

from __future__ import annotations

import threading
from functools import lru_cache

from envservice.scienceworld.installation import find_program
from envservice.scienceworld.simulator import SOLVE_S, SOLVER_HEAP_MIB, Simulator
from envservice.scienceworld.tasks import place_of
from envservice.scienceworld.wire import JavaError
from services.errors import EnvFault

IDLE_S = 30.0
"""An idle solver ends after this time: it is as large as three games, and demonstrations come all at once."""


class Solver:
    """One JVM for all gold paths, with a larger heap than games need. It starts on demand."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._simulator: Simulator | None = None
        self._timer: threading.Timer | None = None

    def solve(self, task: str, variation: int, simplifications: str) -> list[str]:
        """Solves a task. Raises JavaError, and UserError without the simulator or Java."""
        with self._lock:
            self._stop_timer()
            if self._simulator is None:
                self._simulator = Simulator(find_program(), heap_mib=SOLVER_HEAP_MIB, call_s=SOLVE_S)
            try:
                self._simulator.load(task, variation, simplifications, gold=True)
                path = self._simulator.gold_path()
            except JavaError:
                self._end()
                raise
            self._timer = threading.Timer(IDLE_S, self.end)
            self._timer.daemon = True
            self._timer.start()
            return path

    def runs(self) -> bool:
        """Whether the JVM runs now."""
        return self._simulator is not None

    def end(self) -> None:
        """Ends the JVM. The next task starts another one."""
        with self._lock:
            self._stop_timer()
            self._end()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        if self._simulator is not None:
            self._simulator.end()
            self._simulator = None


SOLVER = Solver()
"""Returns the solver of this process."""


@lru_cache(maxsize=8192)
def gold_path(task: str, simplifications: str) -> tuple[str, ...]:
    """Returns the actions with which the simulator solves the task. It takes seconds to find them.

    Raises KeyError for an unknown task, UserError without the simulator or Java, EnvFault if the simulator fails.
    """
    place = place_of(task)
    try:
        return tuple(SOLVER.solve(place.name, place.variation, simplifications))
    except JavaError as error:
        raise EnvFault(f"no gold path for {task}: {error}") from error
