"""Intervals by hand-worked numbers."""

import math

import pytest

from services.statistics import mean_interval, paired_gain


def test_mean_interval_of_two_values() -> None:
    """Values 0 and 1: mean .5, sample variance .5, standard error .5, so the half-width is 1.96 x .5."""
    mean, low, high = mean_interval([0.0, 1.0])
    assert mean == 0.5
    assert high - mean == pytest.approx(0.979982, abs=1e-6)
    assert mean - low == pytest.approx(0.979982, abs=1e-6)


def test_pairing_removes_the_variance_between_tasks() -> None:
    """Two tasks of very different difficulty, each gaining .1: the gain has no spread."""
    gain, low, high = paired_gain({"a": 0.1, "b": 0.8}, {"a": 0.2, "b": 0.9})
    assert gain == pytest.approx(0.1)
    assert math.isclose(low, high, abs_tol=1e-9)


def test_pairing_refuses_different_tasks() -> None:
    with pytest.raises(ValueError, match="same tasks"):
        paired_gain({"a": 1.0}, {"b": 1.0})
