"""PPO with a learned critic (arXiv 1707.06347). This file has only the scores; learner/critic.py makes the advantages.

    S_it = R_i - p [step (i, t) invalid]     `values: tokens`: on the row's last token, 0 on the tokens before it
    S_it = r_it - p [step (i, t) invalid]    `values: turns`: the reward of the turn

With `tokens`, the learner takes generalised advantage estimation over the tokens of each row from these scores and the
critic's values (arXiv 1506.02438). Nothing is bootstrapped across turns, as in verl-agent. With `turns` the estimation
is over the turns of an episode: Turn-PPO (arXiv 2512.17008).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from learner.credit.estimator import WithinGroup
from learner.credit.explanation import ADVANTAGE, RAW, CalculationLine, Explanation, score_line
from learner.credit.group_operations import discounted, penalized, rewards, scores, states
from learner.credit.options import CreditOptions
from learner.credit.types import Credit, Group


class PpoOptions(CreditOptions):
    """Options of PPO."""

    lam: float = Field(default=0.8, ge=0, le=1)
    """λ of GAE."""
    values: Literal["tokens", "turns"] = "tokens"
    """Whether the critic values each token of an answer, or each turn by its prompt (Turn-PPO)."""


class Ppo(WithinGroup):
    """Scores for a learned critic. γ and λ are those of the estimation over the tokens of an answer, or over turns."""

    Options: ClassVar = PpoOptions
    needs_critic: ClassVar[bool] = True

    def reads(self, options: PpoOptions) -> frozenset[str]:  # noqa: ARG002 the same keys under all options
        """Returns the keys of the scores, and γ and λ, by which the learner makes advantages of them."""
        return frozenset({"penalty", "penalty_mode", "gamma", "lam", "values"})

    def group(self, group: Group, options: PpoOptions) -> Credit:
        """Returns credit whose raw_advantages and advantages are the row scores."""
        rows = penalized(rewards(group, options), group, options)
        if options.values == "tokens":
            rows, _ = scores(group, options)
        return Credit(returns=discounted(group, options), values=None, deltas=None, raw_advantages=rows,
                      advantages=rows, states=states(group))

    def legend(self, options: PpoOptions) -> dict[str, str]:
        """Returns the legend. The critic values tokens or turns; states have no values."""
        if options.values == "turns":
            return {RAW: "the reward of the step less its penalty", ADVANTAGE: "its advantage, by the critic's values"}
        return {RAW: "the score of the step: the episode's reward less the step's penalty",
                ADVANTAGE: "mean advantage of the answer's tokens, by the critic's values"}

    def explain(self, group: Group, credit: Credit, options: PpoOptions, episode: int) -> Explanation:
        """Explains the score. A has no line, because the critic computes it."""
        if options.values == "turns":
            return [[CalculationLine(formula="Â = r, less the penalty of an invalid step", result=score)]
                    for score in credit.raw_advantages[episode]]
        return [[score_line(group, options, episode, t)] for t in range(len(group[episode]))]
