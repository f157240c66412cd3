"""Which task the next group plays, and its tickets: pure functions of the run's seed and the group's index."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from services.config.tree import Config
from services.records import Ticket, Version
from services.seeds import seed_for


def train_group(index: int) -> str:
    """Group ids sort in order of issue."""
    return f"train/{index:08d}"


def typed(tickets: Sequence[Ticket], task_type: Callable[[str], str]) -> list[Ticket]:
    """The same group's, with its task's type."""
    found = task_type(tickets[0].task)
    return [msgspec.structs.replace(ticket, task_type=found) for ticket in tickets]


class TaskStream:
    """An endless sequence of training tasks: each pass over the task set is a new permutation, fixed by the seed.

    Indexing is random access, so a restarted controller goes on where the store says that issue stopped.
    """

    def __init__(self, tasks: Sequence[str], seed: int) -> None:
        """Raises ValueError if there are no tasks."""
        if not tasks:
            raise ValueError("a task stream needs at least one task")
        self._tasks = list(tasks)
        self._seed = seed
        self._pass = -1
        self._order: list[str] = []

    def __getitem__(self, index: int) -> str:
        number, position = divmod(index, len(self._tasks))
        if number != self._pass:
            self._order = list(self._tasks)
            random.Random(seed_for(self._seed, "pass", number)).shuffle(self._order)
            self._pass = number
        return self._order[position]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainTickets:
    """Makes the K tickets of one training group."""

    config: Config
    tasks: TaskStream

    def group(self, index: int, *, dropped: int, avoid: frozenset[str] = frozenset()) -> list[Ticket]:
        """Tickets of group `index` after `dropped` groups were dropped.

        min_step is the version that the learner will hold when it consumes the group, less the staleness allowed:
        at staleness 0 no group is sampled before the weights that it will train are live. A quarantined task
        (`avoid`) is passed over for the nearest later one.
        """
        learner = self.config.learner
        consumed_at = (index - dropped) // learner.groups_per_step
        task = next(t for t in (self.tasks[index + i] for i in range(1 << 20)) if t not in avoid)
        group = train_group(index)
        return [
            Ticket(
                group=group,
                k=k,
                size=learner.group_size,
                task=task,
                seed=seed_for(self.config.seed, group, k),
                kind="train",
                min_step=max(0, consumed_at - learner.staleness),
                temperature=self.config.rollout.temperature,
                max_steps=self.config.env.max_steps,
            )
            for k in range(learner.group_size)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRequest:
    """One evaluation: a fixed task set, one exact version, one temperature."""

    label: str
    """Label of the evaluation, unique in a run, and part of the group ids: `step-00010`, `panel-cold`."""
    version: Version
    split: str
    tasks: tuple[str, ...]
    temperature: float
    samples: int = 1
    """Episodes per task."""
    seed: int
    max_steps: int

    def group(self, index: int) -> str:
        """Id of the group that plays task `index`."""
        return f"eval/{self.label}/{self.temperature:g}/{index:05d}"

    def tickets(self) -> list[list[Ticket]]:
        """A group per task. Seeds do not depend on the label: two versions meet the same games with the same draws."""
        return [
            [
                Ticket(
                    group=self.group(index),
                    k=k,
                    size=self.samples,
                    task=task,
                    seed=seed_for(self.seed, "eval", task, f"{self.temperature:g}", k),
                    kind="eval",
                    exact_version=self.version,
                    temperature=self.temperature,
                    max_steps=self.max_steps,
                )
                for k in range(self.samples)
            ]
            for index, task in enumerate(self.tasks)
        ]
