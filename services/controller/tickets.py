"""Which groups are issued: how many and for which learner step each one is, its task and its tickets.

At staleness 0 all groups of a step need the weights of the step before, so they are issued once these exist, and those
that dynamic sampling replaces after them. From staleness 1 on, groups of the next step are played while the learner
trains. Without more, the samplers would be done with them early and pause, and play the replaced ones while the learner
waits. So as many more groups are issued for each step as the last steps have replaced.

    in the queue, oldest first    next step        the step after it    ... staleness + 1 steps
                                  G + spare        G + spare            G: groups_per_step

If a step replaces fewer groups than expected, some remain. They are the oldest of the next step, which drops them if
they have become too old: by their place in the queue, never by what happened in them. `spare` is therefore the least
number of the last steps, so that few are played in vain.

Tasks and tickets are pure functions of the run's seed and the group's index.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from services.config.tree import Config
from services.records import Drop, Ticket, Version
from services.seeds import seed_for
from services.store.store import Counts, Store
from services.telemetry.names import reason_class

LAST_STEPS = 4
"""Number of steps whose replaced groups are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The groups that the coming learner steps take. A group's *place* is its index less the groups dropped so far."""

    config: Config
    trained: int
    """Number of groups trained on."""
    spare: int = 0
    """Number of groups that each step is expected to replace."""
    replaced: int = 0
    """Number of groups of the next step that are replaced already."""

    @property
    def limit(self) -> int:
        """How many groups, without dropped ones, may be issued: never more than the run will train, but for spare
        ones."""
        steps = min(1 + self.config.learner.staleness, self.config.steps - self._steps)
        return self.trained + (self._next + (steps - 1) * self._each if steps > 0 else 0)

    def consumed_at(self, place: int) -> int:
        """Returns the step of the version that the learner will hold when it takes the group at a place."""
        beyond = place - self.trained - self._next
        return self._steps + (1 + beyond // self._each if beyond >= 0 else 0)

    @property
    def _steps(self) -> int:
        return self.trained // self.config.learner.groups_per_step

    @property
    def _next(self) -> int:
        """Number of groups in the queue that the next step takes or replaces."""
        return self.config.learner.groups_per_step + max(0, self.spare - self.replaced)

    @property
    def _each(self) -> int:
        return self.config.learner.groups_per_step + self.spare


def demand_of(store: Store, config: Config, counts: Counts) -> Demand:
    """Returns the present demand of a run. `counts`: the store's."""
    if not (config.learner.staleness and config.learner.dynamic_sampling):
        return Demand(config=config, trained=counts.trained)
    manifests = store.steps.manifests(max(0, counts.last_step - LAST_STEPS))
    spare = min((_replaced(manifest.drops) for manifest in manifests), default=0)
    return Demand(config=config, trained=counts.trained, spare=spare, replaced=_replaced(store.drops()))


def _replaced(drops: Sequence[Drop]) -> int:
    return sum(reason_class(drop.reason) == "uniform_reward" for drop in drops)


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
        """Returns the tickets of group `index`.

        `consumed_at`: step of the version that the learner will hold when it takes the group (Demand.consumed_at).
        `correction`: instructions for its prompts, which all members share, so that they play one policy.

        min_step is that step minus the allowed staleness. At staleness 0, a group is sampled only from the weights that
        it will train. If the group's task is quarantined (in `avoid`), the group plays the next task that is not. If
        all tasks are, it plays its own.
        """
        learner = self.config.learner
        following = (self.tasks[index + i] for i in range(2 * len(self.tasks)))  # has one entire pass, so every task
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
