"""GraphGPO: credit by the distance between success and the state that a step leads to (arXiv 2605.26684).

    d(s) = fewest seen transitions from s to a won end      unreachable: the largest d of a reachable state + 1
    R_t = C q^d(s_{t+1})                           q = decay; d = 0 after the last step of a won episode
    A_G = (R_t - mean) / (std + ε)                 over all steps in the same state; 0 for a lone one
    A_t = A_E + A_G                                A_E: GRPO's advantage; mode mean_norm divides nothing

An episode is won if its reward is positive, and C is the largest reward of the group. Equation 4 of the paper has one
more factor q, which normalising removes. A group without a won episode has A_G = 0. After a lost episode comes
the state that it was cut in, if the group knows it, else a state from which nothing is reached. The formulas are those
of the authors' code (verl-agent, recipe/GraphGPO), which cites the equations; we did not read the paper's text. Its
states are richer than an observation: place, what is held and the admissible actions (docs/algorithms.md).
"""

from __future__ import annotations

from collections import deque
from math import fsum
from typing import ClassVar, Final

from pydantic import Field

from learner.credit.estimator import WithinGroup
from learner.credit.explanation import ADVANTAGE, RAW
from learner.credit.gigpo import step_term
from learner.credit.group_operations import discounted, plus, rewards, states
from learner.credit.grpo import divided, episode_keys, episode_term
from learner.credit.options import EpisodeOptions
from learner.credit.types import Credit, Group, Nested

WON: Final = object()
"""The end of a won episode. It is not a string, because the key of a state may be any string, also an empty one."""


class GraphgpoOptions(EpisodeOptions):
    """Options of GraphGPO."""

    decay: float = Field(default=0.1, gt=0, lt=1)
    """q: factor on the value of a state for each further step to a won end."""


class Graphgpo(WithinGroup):
    """Credit by distances to success, added to the episode's. `statistics` is for the episode's term, `mode` for both
    terms."""

    Options: ClassVar = GraphgpoOptions
    reads_cuts: ClassVar[bool] = True
    """Whether credit depends on the states in which episodes were cut, also without `bootstrap`. Absent means False."""
    follows_paths: ClassVar[bool] = True

    def reads(self, options: GraphgpoOptions) -> frozenset[str]:
        """Returns GRPO's keys and those of the graph's term."""
        return episode_keys(options) | {"decay", "state_key"}

    def group(self, group: Group, options: GraphgpoOptions) -> Credit:
        """Returns the credit of one group. raw_advantages have no term divided by a spread."""
        _, raw_g, advantages_g = step_term(group, nearness(group, options), options)
        raw_e, advantages_e = episode_term(group, options)
        return Credit(returns=discounted(group, options), values=None, deltas=None, states=states(group),
                      raw_advantages=plus(raw_e, 1.0, raw_g), advantages=plus(advantages_e, 1.0, advantages_g))

    def legend(self, options: GraphgpoOptions) -> dict[str, str]:
        """Returns the legend. No state has a value."""
        return {RAW: "GRPO's S − mean, plus how near to a won end the step led, less the mean of its state's steps",
                ADVANTAGE: f"the same{divided(options)}"}


def nearness(group: Group, options: GraphgpoOptions) -> Nested:
    """Returns R of each step."""
    totals = [fsum(row) for row in rewards(group, options)]
    best = max(totals)
    if best <= 0:
        return [[0.0] * len(episode) for episode in group]
    targets: list[list[object]] = [
        [*(step.state for step in episode[1:]), WON if total > 0 else episode[-1].cut_in]
        for episode, total in zip(group, totals, strict=True)]
    before: dict[object, set[str]] = {}
    for episode, row in zip(group, targets, strict=True):
        for step, target in zip(episode, row, strict=True):
            if target is not None:
                before.setdefault(target, set()).add(step.state)
    distance: dict[object, int] = {WON: 0}
    queue = deque([WON])
    while queue:
        for state in before.get(now := queue.popleft(), ()):
            if state not in distance:
                distance[state] = distance[now] + 1
                queue.append(state)
    unreachable = max(distance.values()) + 1
    return [[best * options.decay ** (unreachable if target is None else distance.get(target, unreachable))
             for target in row] for row in targets]
