"""ScienceWorld's demonstrations: gold paths, with actions that change nothing as noise.

A gold path is the simulator's own solution, which it finds by its knowledge of the world, not by reading. It shows the
actions that win, but not how a player could know them. Imitation teaches at most the grammar and the usual order of
actions.
"""

from __future__ import annotations

import random
import threading
from functools import lru_cache

from envservice.base import Outcome
from envservice.scienceworld.simulator import SOLVE_S, SOLVER_HEAP_MIB, JavaError, Simulator, find_program
from envservice.scienceworld.tasks import place_of
from envservice.spec import Teacher
from envservice.text.response_format import answer
from services.config.tree import SftSection
from services.errors import EnvFault

IDLE_S = 30.0
"""An idle solver ends after this time: it takes the memory of three games, and all demonstrations are made at once."""


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
        """Returns whether the JVM runs now."""
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
"""The solver of this process."""


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


NOISE: dict[str, tuple[str, ...]] = {
    "look around": ("This room is called", "This outside location is called"), "inventory": ("In your inventory",)}
"""Actions that change nothing, with the first words of their answers. Any other noise could make a gold path fail."""
_THOUGHT = "go on"
"""The thought of every answer, because the simulator gives no reasons."""


class ScienceworldDemonstrator:
    """Plays the actions of a gold path in order. An action that noise has replaced is played again."""

    def __init__(self, first: Outcome, rng: random.Random, sft: SftSection) -> None:
        del rng, sft  # its play is not random
        self._path = gold_path(str(first.info["task_id"]), str(first.info["simplifications"]))
        self._next = -1

    def act(self, now: Outcome) -> str:
        if self._next < 0 or not self._was_noise(now):
            self._next += 1
        return answer(_THOUGHT, self._action())

    def _action(self) -> str:
        return self._path[self._next] if self._next < len(self._path) else "look around"

    def _was_noise(self, now: Outcome) -> bool:
        return any(now.observation.startswith(begins) for action, begins in NOISE.items() if action != self._action())


def disturb(action: str, first: Outcome, now: Outcome, rng: random.Random) -> str:
    """Returns an action of NOISE, to be taken instead of `action`."""
    del action, first, now
    return rng.choice(list(NOISE))


TEACHER = Teacher(player=ScienceworldDemonstrator, disturb=disturb)
