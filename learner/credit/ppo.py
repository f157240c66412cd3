"""PPO with a learned critic (arXiv 1707.06347). This file has only the scores; learner/critic.py makes the advantages.

    S_it = R_i - p [step (i, t) invalid]           the reward on the last token of row (i, t), 0 on the tokens before it

The learner takes generalised advantage estimation over the tokens of each row from these scores and the critic's
values (arXiv 1506.02438). Nothing is bootstrapped across turns, as in verl-agent.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from learner.credit.base import WithinGroup
from learner.credit.explanation import ADVANTAGE, RAW, Explanation, score_line
from learner.credit.group_operations import discounted, scores, states
from learner.credit.options import CreditOptions
from learner.credit.types import Credit, Group


class PpoOptions(CreditOptions):
    """Options of PPO. γ and λ are those of the estimation over the tokens of an answer."""

    lam: float = Field(default=0.8, ge=0, le=1)
    """λ of GAE."""


class Ppo(WithinGroup):
    """Scores for the critic."""

    Options: ClassVar = PpoOptions
    needs_critic: ClassVar[bool] = True

    def reads(self, options: PpoOptions) -> frozenset[str]:  # noqa: ARG002 the same keys under all options
        """Returns the keys of the penalty, which changes the scores, and γ and λ of the learner's token advantages."""
        return frozenset({"penalty", "penalty_mode", "gamma", "lam"})

    def group(self, group: Group, options: PpoOptions) -> Credit:
        """Returns credit whose raw_advantages and advantages are the row scores."""
        rows, _ = scores(group, options)
        return Credit(returns=discounted(group, options), values=None, deltas=None, raw_advantages=rows,
                      advantages=rows, states=states(group))

    def legend(self, options: PpoOptions) -> dict[str, str]:  # noqa: ARG002 the same under all options
        """Returns the legend. The critic values tokens; states have no values."""
        return {RAW: "the score of the step: the episode's reward less the step's penalty",
                ADVANTAGE: "mean advantage of the answer's tokens, by the critic's values"}

    def explain(self, group: Group, credit: Credit, options: PpoOptions, episode: int) -> Explanation:  # noqa: ARG002
        """Explains the score. A has no line, because the critic computes it."""
        return [[score_line(group, options, episode, t)] for t in range(len(group[episode]))]
