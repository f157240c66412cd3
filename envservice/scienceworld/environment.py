"""ScienceWorld as an Environment: the published simulator, with one JVM for each game in play."""

from __future__ import annotations

import hashlib
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from types import TracebackType

from envservice.base import Outcome, Replay, Session
from envservice.scienceworld.simulator import VERSION, JavaError, Simulator, find_program
from envservice.scienceworld.tasks import ELECTRICAL, LEVELS, SPLITS, Place, place_of, split_tasks
from services.config.env import ScienceworldSection
from services.errors import EnvFault, UserError

GAMES = 200
"""Games after which a new JVM replaces one, so that memory does not grow."""


class SimulatorLease:
    """One simulator for one game. It returns to the pool at `end`, or when the lease is dropped."""

    def __init__(self, pool: Pool, simulator: Simulator) -> None:
        self.simulator = simulator
        self._back = weakref.finalize(self, pool.take_back, simulator)
        self._back.atexit = False

    def end(self) -> None:
        """Returns the simulator to the pool."""
        self._back()

    def scrap(self) -> None:
        """Ends the simulator instead, because it has failed."""
        self._back.detach()
        self.simulator.end()


class Pool:
    """Simulators for games, at most as many as games were ever played at once. A lease may end in any thread, so all
    operations are atomic."""

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
        """Takes a simulator back from a lease. One that has played GAMES games is ended."""
        if self._closed or simulator.games >= GAMES:
            simulator.end()
        else:
            self._idle.append(simulator)

    def pids(self) -> list[int]:
        """Returns the ids of the running processes, busy and idle."""
        return sorted(simulator.pid for simulator in list(self._started) if simulator.runs())

    def close(self) -> None:
        """Ends all simulators. A game in play fails at its next step."""
        self._closed = True
        self._idle.clear()
        for simulator in list(self._started):
            simulator.end()


WINNING_SCORE = 100
_NO_WIRES = "noElectricalAction"


class ScienceworldEnvironment:
    """The environment. Exiting its context ends its JVMs; so does the end of the process.

    Raises UserError if the simulator or Java is missing.
    """

    name = "scienceworld"
    engine = "simulator"
    replay: Replay = "pure"

    def __init__(self, settings: ScienceworldSection | None = None) -> None:
        self._settings = settings or ScienceworldSection()
        program = find_program()
        with program.jar.open("rb") as file:
            self._content = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
        self.pool = Pool(partial(Simulator, program))
        self.version = "+".join([VERSION, *sorted(self._settings.simplifications),
                                 *(["valid"] if self._settings.admissible == "valid" else [])])

    def __enter__(self) -> ScienceworldEnvironment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pool.close()

    def simplified(self, name: str) -> str:
        """Returns the simplifications of a type of task, as the simulator takes them."""
        return simplified(self._settings, name)

    def splits(self) -> list[str]:
        return list(SPLITS)

    def training_splits(self) -> tuple[str, str, str]:
        return LEVELS[self._settings.level]

    def task_type(self, task: str) -> str:
        """Returns the task's published name."""
        return place_of(task).name

    def tasks(self, split: str) -> list[str]:
        if split not in SPLITS:
            raise UserError(f"scienceworld has no split {split!r}", f"choose one of {', '.join(SPLITS)}")
        ids = sorted(place.id for place in split_tasks(split, self._settings.tasks))
        if not ids:
            raise UserError(f"the split {split} has no task of the types {', '.join(self._settings.tasks)}",
                            "widen env.scienceworld.tasks")
        return ids

    def digest(self, split: str) -> str:
        """Returns a digest of the simulator's file, the task ids and their simplifications, which decide the tasks."""
        total = hashlib.blake2b(digest_size=16)
        for task in self.tasks(split):
            total.update(f"{task}\0{self.task_digest(task)}\0".encode())
        return total.hexdigest()

    def task_digest(self, task: str) -> str:
        place = place_of(task)
        text = f"{self._content}/{place.id}/{self.simplified(place.name)}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def open(self, task: str) -> Session:
        """Opens a session, which has no JVM before its reset."""
        return ScienceworldSession(place_of(task), self.pool, self._settings)


class ScienceworldSession:
    """One game. It holds a JVM from its reset until the game is over or the session is dropped."""

    def __init__(self, place: Place, pool: Pool, settings: ScienceworldSection) -> None:
        self._place = place
        self._pool = pool
        self._lists_valid = settings.admissible == "valid"
        self._simpler = simplified(settings, place.name)
        self._lease: SimulatorLease | None = None

    def reset(self) -> Outcome:
        """Returns the task, followed by the answer to `look around`."""
        self._steps, self._best = 0, 0
        try:
            if self._lease is None:
                self._lease = self._pool.lease()
            simulator = self._lease.simulator
            simulator.load(self._place.name, self._place.variation, self._simpler)
            self._task, self._kinds = simulator.task(), simulator.templates()
            return self._outcome(simulator, f"{self._task}\n\n{simulator.step('look around')}")
        except JavaError as error:
            raise self._broken(error) from error

    def step(self, action: str) -> Outcome:
        if self._lease is None:
            raise EnvFault(f"{self._place.id}: the game is over, or has not begun")
        self._steps += 1
        try:
            return self._outcome(self._lease.simulator, self._lease.simulator.step(action))
        except JavaError as error:
            raise self._broken(error) from error

    def _outcome(self, simulator: Simulator, observation: str) -> Outcome:
        score = simulator.score()
        done = simulator.completed() or score < 0
        self._best = max(self._best, score)
        info = {"task": self._task, "score": score, "task_score": self._best / WINNING_SCORE, "steps": self._steps,
                "moves": simulator.moves(), "objects": "; ".join(simulator.objects()),
                "task_id": self._place.id, "simplifications": self._simpler}
        actions = [] if done else simulator.valid_actions() if self._lists_valid else self._kinds
        won = score >= WINNING_SCORE
        if done and self._lease is not None:
            self._lease.end()
            self._lease = None
        return Outcome(observation=observation, admissible_actions=list(actions), reward=float(won), done=done, won=won,
                       info=info)

    def _broken(self, error: JavaError) -> EnvFault:
        if self._lease is not None:
            self._lease.scrap()
            self._lease = None
        return EnvFault(f"{self._place.id}: {error}")


def simplified(settings: ScienceworldSection, name: str) -> str:
    """Joins the simplifications of a type of task, as the simulator takes them."""
    return ",".join(sorted(each for each in settings.simplifications if each != _NO_WIRES or name not in ELECTRICAL))
