"""RLOO: an episode's reward against the mean of the others (arXiv 2402.14740).

    A_it = n / (n - 1) (S_it - mean)

which is S minus the mean of the n - 1 other members. S as in grpo.py; mean over the n step rows of the group
(statistics `rows`, verl-agent's code) or over its n = K episode rewards (`trajectories`, the paper). Under
`trajectories` a local penalty, which is in S alone, is multiplied by n / (n - 1) too.
"""

from __future__ import annotations

from typing import ClassVar

from learner.credit.estimator import WithinGroup
from learner.credit.explanation import ADVANTAGE, RAW, CalculationLine, Explanation, less, plain, score_of
from learner.credit.group_operations import average, discounted, scores, states
from learner.credit.options import StatisticsOptions
from learner.credit.types import Credit, Group


class Rloo(WithinGroup):
    """Episode-level credit with a leave-one-out baseline. Nothing is divided by a spread."""

    Options: ClassVar = StatisticsOptions

    def reads(self, options: StatisticsOptions) -> frozenset[str]:  # noqa: ARG002 the same keys under all options
        """Returns the keys of the score. Keys of spreads and states have no effect."""
        return frozenset({"penalty", "penalty_mode", "statistics"})

    def group(self, group: Group, options: StatisticsOptions) -> Credit:
        """Returns the credit of one group. A single member has nothing to compare with and keeps its score."""
        rows, sample = scores(group, options, options.statistics)
        n = len(sample)
        mean, scale = (average(sample), n / (n - 1)) if n > 1 else (0.0, 1.0)
        advantages = [[scale * (s - mean) for s in row] for row in rows]
        return Credit(returns=discounted(group, options), values=None, deltas=None, raw_advantages=advantages,
                      advantages=advantages, states=states(group))

    def legend(self, options: StatisticsOptions) -> dict[str, str]:
        """Returns the legend. Â and A are the same."""
        over = "episodes" if options.statistics == "trajectories" else "steps"
        return {RAW: f"the episode's reward less the step's penalty, against the mean of the group's other {over}",
                ADVANTAGE: "Â, not rescaled"}

    def explain(self, group: Group, credit: Credit, options: StatisticsOptions, episode: int) -> Explanation:
        """Explains the numbers: n / (n - 1) times the deviation from the mean is the distance to the others' mean."""
        _, sample = scores(group, options, options.statistics)
        n = len(sample)
        lines: Explanation = []
        for t, raw in enumerate(credit.raw_advantages[episode]):
            numbers, score = score_of(group, options, episode, t)
            mean, scale = (average(sample), n / (n - 1)) if n > 1 else (0.0, 1.0)
            lines.append([
                CalculationLine(formula=f"Â = n / (n − 1) · (S − mean S) = {scale:.6g} · ({numbers}{less(mean)})",
                                result=scale * (score - mean)),
                CalculationLine(formula=f"A = Â = {plain(raw)}", result=raw)])
        return lines
