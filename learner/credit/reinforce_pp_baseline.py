"""REINFORCE++ with a group baseline: scores less the mean of their group, then whitened (arXiv 2501.03262).

    Â_it = S_it - mean                             over the group's step rows, or its episodes (key `statistics`)
    A_it = (Â_it - μ) / (σ + ε)                    over the response tokens of all rows of all groups
"""

from __future__ import annotations

from typing import ClassVar

from learner.credit.estimator import WithinGroup
from learner.credit.explanation import ADVANTAGE, RAW, Explanation, deviation_line
from learner.credit.group_operations import center, scores
from learner.credit.options import SpreadOptions, StatisticsOptions
from learner.credit.reinforce_pp import WHITENED, scored, whitened
from learner.credit.types import Credit, Group


class BaselineOptions(StatisticsOptions, SpreadOptions):
    """Options of REINFORCE++ with a group baseline."""


class ReinforcePlusPlusBaseline(WithinGroup):
    """Batch-level credit with the mean of the group as baseline."""

    Options: ClassVar = BaselineOptions
    needs_tokens: ClassVar[bool] = True

    def reads(self, options: BaselineOptions) -> frozenset[str]:  # noqa: ARG002 the same keys under all options
        """Returns REINFORCE++'s keys, and `statistics` for the baseline of a group."""
        return frozenset({"penalty", "penalty_mode", "ddof", "statistics"})

    def group(self, group: Group, options: BaselineOptions) -> Credit:
        """Returns the centred scores, which `batch` whitens. Raises ValueError as ReinforcePlusPlus does."""
        rows, sample = scores(group, options, options.statistics)
        mean, _ = center(sample, options.ddof)
        return scored(group, options, [[s - mean for s in row] for row in rows])

    def batch(self, credits: list[Credit], options: BaselineOptions) -> list[Credit]:
        """Whitens the scores of all groups together."""
        return whitened(credits, options.ddof)

    def legend(self, options: BaselineOptions) -> dict[str, str]:
        """Returns the legend. States have no values."""
        over = "episodes" if options.statistics == "trajectories" else "steps"
        return {RAW: f"S − mean, S the episode's reward less the step's penalty, the mean over the group's {over}",
                ADVANTAGE: WHITENED}

    def explain(self, group: Group, credit: Credit, options: BaselineOptions, episode: int) -> Explanation:  # noqa: ARG002
        """Explains the score. A has no line, because all groups of the learner step affect it."""
        return [[deviation_line(group, options, episode, t)] for t in range(len(group[episode]))]
