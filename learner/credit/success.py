"""The unbiased credit that the estimators are measured against (lab/experiments/gradient/alignment.py)."""

from __future__ import annotations

from collections.abc import Sequence


def success_credit(won: Sequence[bool], lengths: Sequence[int]) -> list[list[float]]:
    """Returns for each turn of K >= 2 episodes their success minus the mean success of the others, [episode][turn].

    The mean of its sum of score gradients is K times the gradient of the success rate, whatever the turns were worth
    (RLOO, arXiv 2402.14740, equation 7, without a penalty and without discounting).
    """
    others = len(won) - 1
    return [[float(one) - (sum(won) - one) / others] * length for one, length in zip(won, lengths, strict=True)]
