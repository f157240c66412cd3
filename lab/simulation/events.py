"""A discrete-event simulation of the training loop: no process is started and nothing is played.

It keeps the rules that decide the speed of a run: the capacity for tickets (services/controller/telemetry.py), tickets
that need weights of a step (`learner.staleness`), workers that take as many tickets as they have room for, groups that
are trained in order, a publication that waits for the evaluation of the version before, and checkpoints before
evaluations. Redis, the controller and each environment server do one thing at a time.

A turn of an episode on a worker that plays n episodes takes turn_alone + n turn_share seconds.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from lab.simulation.figures import Figures
from services.config.tree import Config

EVALUATION = -1
"""Stands for the step of an evaluation's ticket."""


class Busy:
    """Something that does one thing at a time, in order of arrival."""

    def __init__(self) -> None:
        self.free_at = 0.0
        self.total = 0.0

    def take(self, now: float, seconds: float) -> float:
        """Returns the time at which work that arrives now is done."""
        self.free_at = max(now, self.free_at) + seconds
        self.total += seconds
        return self.free_at


@dataclass(slots=True)
class Worker:
    """One rollout worker."""

    playing: int = 0
    version: int = 0
    ready_at: float = 0.0
    """When it has loaded its version."""
    since: float = 0.0
    total: float = 0.0
    """Time in which it played at least one episode, up to `since` if it plays now."""


@dataclass(slots=True)
class Totals:
    """The waits and the work of all parts up to a moment."""

    time: float = 0.0
    step: int = 0
    learner_waits: float = 0.0
    workers_busy: float = 0.0
    servers_busy: float = 0.0
    store_busy: float = 0.0
    controller_busy: float = 0.0


@dataclass(slots=True, kw_only=True)
class Simulation:
    """One run. `run(steps)` returns the totals at the end of each learner step."""

    config: Config
    figures: Figures
    seed: int = 0
    now: float = 0.0
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: count[int] = field(default_factory=count)
    _rng: random.Random = field(default_factory=random.Random)
    _workers: list[Worker] = field(default_factory=list)
    _servers: list[Busy] = field(default_factory=list)
    _store: Busy = field(default_factory=Busy)
    _controller: Busy = field(default_factory=Busy)
    _tickets: deque[int] = field(default_factory=deque)
    """Training tickets by the learner step that trains on them."""
    _evaluations: int = 0
    """Evaluation tickets that nobody plays yet."""
    _unevaluated: int = 0
    """Evaluation episodes that are not finished."""
    _issued: int = 0
    """Groups."""
    _open: dict[int, int] = field(default_factory=dict)
    """Unfinished episodes by learner step."""
    _step: int = 0
    _version: int = 0
    _waits_since: float | None = 0.0
    _trained: bool = False
    """Whether a step is trained and not published."""
    _waited: float = 0.0
    _history: list[Totals] = field(default_factory=list)

    def run(self, steps: int) -> list[Totals]:
        """Plays `steps` learner steps."""
        self._rng = random.Random(self.seed)
        self._workers = [Worker() for _ in range(self.config.rollout.workers)]
        self._servers = [Busy() for _ in range(len(self.config.env.urls) or self.config.env.servers)]
        self._published(evaluated=self.config.evaluates(0))
        while len(self._history) < steps:
            self.now, _, happen = heapq.heappop(self._events)
            happen()
        return self._history

    def _at(self, time: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), happen))

    def _issue(self) -> None:
        """Issues whole groups up to capacity. A step counts as trained once the learner has taken its groups."""
        learner = self.config.learner
        taken = self._step + (self._waits_since is None)
        while self._issued < (taken + 1 + learner.staleness) * learner.groups_per_step:
            step = self._issued // learner.groups_per_step
            self._issued += 1
            self._open[step] = self._open.get(step, 0) + learner.group_size
            self._at(self._controller.take(self.now, self.figures.control_group), lambda step=step: self._arrive(step))

    def _arrive(self, step: int) -> None:
        self._tickets.extend([step] * self.config.learner.group_size)
        self._claim_all()

    def _claim_all(self) -> None:
        """All workers look for tickets, in any order: the first takes as many as it has room for."""
        for worker in self._rng.sample(self._workers, len(self._workers)):
            if not (self._tickets or self._evaluations):
                return
            self._claim(worker)

    def _claim(self, worker: Worker) -> None:
        claimed: list[int] = []
        while worker.playing + len(claimed) < self.config.rollout.slots:
            if self._tickets and self._tickets[0] - self.config.learner.staleness <= worker.version:
                claimed.append(self._tickets.popleft())
            elif self._evaluations:
                self._evaluations -= 1
                claimed.append(EVALUATION)
            else:
                break
        if claimed and not worker.playing:
            worker.since = self.now
        worker.playing += len(claimed)
        for step in claimed:
            turns = self._rng.choice(self.figures.turns)
            self._turn(worker, self._rng.choice(self._servers), step, turns, turns)

    def _turn(self, worker: Worker, server: Busy, step: int, left: int, turns: int) -> None:
        """Plays the next turn of an episode, or ends it."""
        if not left:
            self._at(self._store.take(self.now, turns * self.figures.store_turn), lambda: self._commit(step))
            worker.playing -= 1
            if not worker.playing:
                worker.total += self.now - worker.since
            self._claim(worker)
            return
        sampled = max(self.now, worker.ready_at) + self.figures.turn_alone + worker.playing * self.figures.turn_share
        done = server.take(sampled, self.figures.env_step) if self.figures.env_step else sampled
        self._at(done, lambda: self._turn(worker, server, step, left - 1, turns))

    def _commit(self, step: int) -> None:
        if step == EVALUATION:
            self._unevaluated -= 1
            self._publish()
        else:
            self._open[step] -= 1
            self._train()

    def _train(self) -> None:
        """Begins the next learner step once all its groups are finished."""
        ready = self._issued >= (self._step + 1) * self.config.learner.groups_per_step and not self._open[self._step]
        if self._waits_since is None or not ready:
            return
        self._waited += self.now - self._waits_since
        self._waits_since = None
        self._issue()
        learner = self.config.learner
        turns = learner.groups_per_step * learner.group_size * sum(self.figures.turns) / len(self.figures.turns)
        seconds = self.figures.learner_step + turns * self.figures.learner_turn / learner.ranks
        self._at(self.now + seconds + self.figures.publish, self._step_trained)

    def _step_trained(self) -> None:
        self._trained = True
        self._publish()

    def _publish(self) -> None:
        """Publishes a trained step once the version before it is evaluated."""
        if not self._trained or self._unevaluated:
            return
        self._trained = False
        del self._open[self._step]
        self._step += 1
        evaluated = self.config.evaluates(self._step)
        self._published(evaluated=False)
        due = self._step % self.config.checkpoint.every == 0
        self._at(self.now + (self.figures.checkpoint if due else 0.0), lambda: self._durable(evaluated=evaluated))

    def _published(self, *, evaluated: bool) -> None:
        """All workers load the new version."""
        self._version = self._step
        for worker in self._workers:
            worker.version, worker.ready_at = self._version, self.now + self.figures.update
        if self._step == 0:
            self._durable(evaluated=evaluated)
        else:
            self._claim_all()

    def _durable(self, *, evaluated: bool) -> None:
        """The learner waits for its next groups, and a due evaluation begins."""
        self._remember()
        self._waits_since = self.now
        self._issue()
        if evaluated:  # after the training tickets of now, which workers take first
            self._unevaluated += self.config.eval.games
            self._at(self.now, self._evaluate)
        self._train()

    def _evaluate(self) -> None:
        self._evaluations += self.config.eval.games
        self._claim_all()

    def _remember(self) -> None:
        if not self._step:
            return
        busy = sum(one.total + (self.now - one.since if one.playing else 0.0) for one in self._workers)
        self._history.append(Totals(
            time=self.now, step=self._step, learner_waits=self._waited, workers_busy=busy,
            servers_busy=sum(one.total for one in self._servers), store_busy=self._store.total,
            controller_busy=self._controller.total))
