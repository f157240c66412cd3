"""Intervals that evaluations report. Pure; no SciPy: n is large enough for the normal quantile."""

from __future__ import annotations

import math
from collections.abc import Sequence

Z95 = 1.959964


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(mean, low, high): the normal 95% interval of the mean over tasks, sample variance (ddof 1).

    Raises ValueError on no values. With one value the interval is the value.
    """
    if not values:
        raise ValueError("no values to average")
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return mean, mean, mean
    variance = math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)
    half = Z95 * math.sqrt(variance / len(values))
    return mean, mean - half, mean + half


def paired_gain(before: dict[str, float], after: dict[str, float]) -> tuple[float, float, float]:
    """(gain, low, high) of the mean per-task difference after - before, with its 95% interval.

    Both map task to mean success; pairing removes the variance between tasks. Raises ValueError when the tasks differ.
    """
    if before.keys() != after.keys():
        raise ValueError("a paired gain needs the same tasks on both sides")
    return mean_interval([after[task] - before[task] for task in sorted(before)])
