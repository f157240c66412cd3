"""The unbiased credit: hand-worked numbers, and its mean gradient over all outcomes of a policy with two actions."""

from itertools import product

import pytest

from lab.experiments.gradient.alignment import success_credit


def test_each_turn_has_success_minus_that_of_the_others():
    """One of three won: 1 - 0 = 1 for it, 0 - 1/2 for each other, at every turn."""
    assert success_credit([True, False, False], [2, 1, 1]) == [[1.0, 1.0], [-0.5], [-0.5]]
    assert success_credit([True, True], [1, 2]) == [[0.0], [0.0, 0.0]]


def test_the_mean_over_all_groups_is_k_times_the_gradient_of_success():
    """One turn, won with p = σ(θ): d log π / dθ is 1 - p where it won and -p elsewhere, and dp/dθ = p (1 - p)."""
    p, size = 0.3, 3
    mean = 0.0
    for won in product((True, False), repeat=size):
        likelihood = 1.0
        for one in won:
            likelihood *= p if one else 1 - p
        credit = success_credit(won, [1] * size)
        mean += likelihood * sum(row[0] * ((1 - p) if one else -p) for one, row in zip(won, credit, strict=True))
    assert mean == pytest.approx(size * p * (1 - p))
