"""Which groups are issued: how many, for which learner step each one is, and its tickets.

At staleness 0 all groups of a step need the weights of the step before, so they are issued once these exist, and those
that dynamic sampling replaces after them. From staleness 1 on, groups of the next step are played while the learner
trains. Without more, the samplers would be done with them early and pause, and play the replaced ones while the learner
waits. So as many more groups are issued for each step as the last steps have replaced.

    in the queue, oldest first    next step        the step after it    ... staleness + 1 steps
                                  G + spare        G + spare            G: groups_per_step

If a step replaces fewer groups than expected, some remain. They are the oldest of the next step, which drops them if
they have become too old: by their place in the queue, never by what happened in them. `spare` is therefore the least
number of the last steps, so that few are played in vain.

Tasks (task_streams.py) and tickets are pure functions of the run's seed and the group's index, and with a
ContrastSampler of the results of earlier steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from services.config.env import EnvSection
from services.config.tree import Config
from services.controller.task_streams import ContrastSampler, MixedStream, TaskStream
from services.records import Drop, Ticket, Version
from services.seeds import seed_for
from services.store.store import Counts, Store
from services.telemetry.catalogue import reason_class

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
        """Most groups that may be issued by now, dropped ones not counted: at most those that the run will train, and
        spare ones."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainTickets:
    """Makes the K tickets of one training group."""

    config: Config
    tasks: TaskStream | MixedStream
    sampler: ContrastSampler | None = None
    """Chooses among the types of tasks (learner.task_sampling). None: all tasks come equally often."""

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
        sampled = [] if self.sampler is None else [self.sampler.stream(index, consumed_at)]
        streams = [*sampled, self.tasks]
        # Of each stream two passes have one entire pass, so every task. If a type is quarantined, other types follow.
        following = (stream[index + i] for stream in streams for i in range(2 * len(stream)))
        task = next((task for task in following if task not in avoid), streams[0][index])
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
                max_steps=self.config.env.entry_of(task).max_steps,
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
    env: EnvSection
    """The environment of the tasks, or the list of several. Its `max_steps` bounds an episode."""

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
                    max_steps=self.env.entry_of(task).max_steps,
                )
                for k in range(self.samples)
            ]
            for index, task in enumerate(self.tasks)
        ]
