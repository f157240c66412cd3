"""REINFORCE++: the score of each row, whitened over all tokens of the batch (arXiv 2501.03262).

    A_it = (S_it - μ) / (σ + ε)     μ, σ over the response tokens of all groups: row (i, t) counts n_it times

S as in grpo.py. Within an answer γ is 1, so all tokens of a row share its score, and weighing rows by their tokens is
the same as whitening tokens. Descriptions of the paper have a KL term in each token's reward here, and in the loss of
the form with a group baseline. Here the KL is in the loss of both (learner.loss.kl), as in verl-agent's scripts.
"""

from __future__ import annotations

from dataclasses import replace
from math import fsum, sqrt
from typing import ClassVar

from learner.credit.estimator import WithinGroup
from learner.credit.explanation import ADVANTAGE, RAW, Explanation, score_line
from learner.credit.group_operations import EPSILON, discounted, scores, states
from learner.credit.options import SpreadOptions
from learner.credit.types import Credit, Group, Nested

WHITENED = "Â on the scale of all response tokens of the learner step"


class ReinforcePlusPlus(WithinGroup):
    """Batch-level credit without a group."""

    Options: ClassVar = SpreadOptions
    needs_tokens: ClassVar[bool] = True
    needs_group: ClassVar[bool] = False
    """Whether an episode is compared with others of its task. Absent means True, and with a critic it is not read."""

    def reads(self, options: SpreadOptions) -> frozenset[str]:  # noqa: ARG002 the same keys under all options
        """Returns the keys of the score and the spread. Groups and states have no effect."""
        return frozenset({"penalty", "penalty_mode", "ddof"})

    def group(self, group: Group, options: SpreadOptions) -> Credit:
        """Returns the scores, which `batch` whitens. Raises ValueError for a step with an unknown number of tokens."""
        return scored(group, options, scores(group, options)[0])

    def batch(self, credits: list[Credit], options: SpreadOptions) -> list[Credit]:
        """Whitens the scores of all groups together."""
        return whitened(credits, options.ddof)

    def legend(self, options: SpreadOptions) -> dict[str, str]:  # noqa: ARG002 the same under all options
        """Returns the legend. States have no values, and groups are not compared."""
        return {RAW: "the episode's reward less the step's penalty", ADVANTAGE: WHITENED}

    def explain(self, group: Group, credit: Credit, options: SpreadOptions, episode: int) -> Explanation:  # noqa: ARG002
        """Explains the score. A has no line, because all groups of the learner step affect it."""
        return [[score_line(group, options, episode, t)] for t in range(len(group[episode]))]


def scored(group: Group, options: SpreadOptions, raw: Nested) -> Credit:
    """Returns credit that still has to be whitened."""
    tokens = [[step.tokens for step in episode if step.tokens is not None] for episode in group]
    if any(len(row) < len(episode) for row, episode in zip(tokens, group, strict=True)):
        raise ValueError(f"estimator {options.estimator} needs the tokens of every step")
    return Credit(returns=discounted(group, options), values=None, deltas=None, raw_advantages=raw, advantages=raw,
                  states=states(group), tokens=tokens)


def whitened(credits: list[Credit], ddof: int) -> list[Credit]:
    """Returns the credits with Â whitened to A: zero mean and unit spread over all tokens. The score of a single token
    is unchanged; equal scores give 0."""
    raw = [x for credit in credits for row in credit.raw_advantages for x in row]
    weights = [n for credit in credits for row in credit.tokens or [] for n in row]
    total = sum(weights)
    if total == 1:
        return credits
    mean, spread = raw[0], 1.0
    if min(raw) != max(raw):
        mean = fsum(n * x for n, x in zip(weights, raw, strict=True)) / total
        spread = sqrt(fsum(n * (x - mean) ** 2 for n, x in zip(weights, raw, strict=True)) / (total - ddof)) + EPSILON
    return [replace(credit, advantages=[[(x - mean) / spread for x in row] for row in credit.raw_advantages])
            for credit in credits]
