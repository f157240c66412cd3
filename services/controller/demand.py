"""How many training groups may be issued, and for which learner step each one is.

At staleness 0 all groups of a step need the weights of the step before, so they are issued once these exist, and those
that dynamic sampling replaces after them. From staleness 1 on, groups of the next step are played while the learner
trains. Without more, the samplers would be done with them early and pause, and play the replaced ones while the learner
waits. So as many more groups are issued for each step as the last steps have replaced.

    in the queue, oldest first    next step        the step after it    ... staleness + 1 steps
                                  G + spare        G + spare            G: groups_per_step

A step that replaces fewer groups than expected leaves some over. They are the oldest of the next step, which drops them
if they have become too old: by their place in the queue, never by what happened in them. `spare` is therefore the least
number of the last steps, so that few are played in vain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.config.tree import Config
from services.records import Drop
from services.store.store import Counts, Store
from services.telemetry.tickets import reason_class

LAST_STEPS = 4
"""Number of steps whose replaced groups are looked at."""


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
