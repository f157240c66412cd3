"""Chooses the task of each group and makes its tickets. All are pure functions of the run's seed and group index."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from services.config.tree import Config
from services.records import Ticket, Version
from services.seeds import seed_for


def train_group(index: int) -> str:
    """Returns the id of training group `index`. Ids sort in the order of issue."""
    return f"train/{index:08d}"


def typed(tickets: Sequence[Ticket], task_type: Callable[[str], str]) -> list[Ticket]:
    """Returns the tickets of one group with their task's type filled in."""
    kind = task_type(tickets[0].task)
    return [msgspec.structs.replace(ticket, task_type=kind) for ticket in tickets]


class TaskStream:
    """An endless sequence of training tasks. Each pass over the task set is a new permutation, fixed by the seed.

    Any index can be read directly, so a restarted controller continues at the next group that the store names.
    """

    def __init__(self, tasks: Sequence[str], seed: int) -> None:
        """Raises ValueError if there are no tasks."""
        if not tasks:
            raise ValueError("a task stream needs at least one task")
        self._tasks = list(tasks)
        self._seed = seed
        self._pass = -1
        self._order: list[str] = []

    def __len__(self) -> int:
        """Number of tasks of one pass."""
        return len(self._tasks)

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

    def group(self, index: int, *, consumed_at: int, avoid: frozenset[str] = frozenset(),
              correction: str = "") -> list[Ticket]:
        """Returns the tickets of group `index`. `consumed_at`: step of the version that the learner will hold when it
        takes the group (demand.py). `correction`: instructions for its prompts, which all members share, so that they
        play one policy.

        min_step is that step minus the allowed staleness. At staleness 0, a group is sampled only from the weights that
        it will train. If the group's task is quarantined (in `avoid`), the group plays the next task that is not. If
        all tasks are, it plays its own.
        """
        learner = self.config.learner
        following = (self.tasks[index + i] for i in range(2 * len(self.tasks)))  # has one whole pass, so every task
        task = next((task for task in following if task not in avoid), self.tasks[index])
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
                correction=correction,
            )
            for k in range(learner.group_size)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRequest:
    """One evaluation: a fixed task set, one exact version, one temperature."""

    label: str
    """Label of the evaluation, such as `step-000010` or `panel-cold`. Unique in a run, and part of the group ids."""
    version: Version
    split: str
    tasks: tuple[str, ...]
    temperature: float
    samples: int = 1
    """Episodes per task."""
    seed: int
    max_steps: int

    def group(self, index: int) -> str:
        """Returns the id of the group that plays task `index`."""
        return f"eval/{self.label}/{self.temperature:g}/{index:05d}"

    def tickets(self) -> list[list[Ticket]]:
        """Returns the tickets of each task's group.

        Seeds do not depend on the label, so two versions play the same games with the same random draws.
        """
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
