"""Confidence intervals that evaluations and experiments report. Pure functions, without SciPy.

A success rate over tasks gets Wilson's interval, a paired gain the normal interval (Student's for few tasks), a mean
over seeds Student's, the best of several episodes a bootstrap's over tasks.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import NormalDist

Z95 = 1.959964
FEW = 30
"""Paired differences below which their interval is Student's. From there on the normal one is narrower by under 5%."""
ROUNDING = 1e-9
"""Values that are closer than this count as equal: mean successes carry rounding errors."""
RESAMPLES = 2000
"""Resamples of a bootstrap: 50 of them lie beyond each end of its interval."""


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Returns (mean, low, high): the normal 95% interval of the mean, by the sample variance (ddof 1).

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


def success_interval(by_task: Sequence[float], samples: int = 1) -> tuple[float, float, float]:
    """Returns (mean, low, high): Wilson's 95% score interval of the success rate over tasks, within [0, 1].

    `by_task`: each task's mean success over its `samples` episodes. Episodes of one task are correlated, so the
    effective number of trials is n = mean (1 - mean) / (variance of the mean over tasks), at least one per task and at
    most one per episode. If all tasks have the same success, each task counts as one trial.
    Raises ValueError on no values.
    """
    mean, low, _ = mean_interval(by_task)
    error = (mean - low) / Z95
    tasks, equal = len(by_task), max(by_task) - min(by_task) < ROUNDING
    n = tasks if equal else min(max(mean * (1 - mean) / error**2, tasks), tasks * samples)
    middle = (mean + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
    half = Z95 / (1 + Z95**2 / n) * math.sqrt(mean * (1 - mean) / n + Z95**2 / (4 * n**2))
    return mean, min(mean, max(0.0, middle - half)), max(mean, min(1.0, middle + half))  # it never rounds past the mean


def paired_gain(before: dict[str, float], after: dict[str, float], *, comparisons: int = 1,
                ) -> tuple[float, float, float]:
    """Returns (gain, low, high): the mean difference after - before over tasks, with its 95% interval, within [-1, 1].

    Both map task to mean success; pairing removes the variance between tasks. The interval is the normal one, and
    Student's below FEW tasks. If all n differences equal d, their spread says nothing of other tasks. Then at most a
    share p = 1 - 0.025^(1/n) of all tasks differs (Clopper and Pearson's bound for none of n), by as much as a
    difference can: from d - p (1 + d) to d + p (1 - d). `comparisons`: the number of gains from which this one was
    chosen; with 95%, the intervals of all of them hold (Bonferroni). Raises ValueError for other tasks, or for none.
    """
    if before.keys() != after.keys():
        raise ValueError("a paired gain needs the same tasks on both sides")
    gains = [after[task] - before[task] for task in sorted(before)]
    n, mean, beyond = len(gains), mean_interval(gains)[0], 0.05 / comparisons
    if max(gains) - min(gains) < ROUNDING:
        share = 1 - (beyond / 2) ** (1 / n)
        low, high = mean - share * (1 + mean), mean + share * (1 - mean)
    else:
        width = student_t(1 - beyond, n - 1) if n < FEW else NormalDist().inv_cdf(1 - beyond / 2)
        half = width * spread(gains) / math.sqrt(n)
        low, high = mean - half, mean + half
    return mean, min(mean, max(-1.0, low)), max(mean, min(1.0, high))


def best_of(values: Sequence[float], k: int) -> float:
    """Returns the expected largest of `k` of the values, drawn without replacement: an unbiased estimate for k new
    episodes. Of wins (0 or 1) it is pass@k (arXiv 2107.03374, equation 1).

    The i-th smallest of n values is the largest of k in C(i - 1, k - 1) of C(n, k) draws. Raises ValueError unless
    1 <= k <= n.
    """
    if not 1 <= k <= len(values):
        raise ValueError(f"the best of {k} of {len(values)} values")
    ways = (value * math.comb(i, k - 1) for i, value in enumerate(sorted(values)))
    return math.fsum(ways) / math.comb(len(values), k)


def bootstrap_interval(values: Sequence[float], *, bounds: tuple[float, float]) -> tuple[float, float, float]:
    """Returns (mean, low, high): the percentile bootstrap's 95% interval of the mean over tasks. The same values in the
    same order give the same interval.

    `bounds`: the smallest and the largest value that there can be. If all n values are equal, resamples say nothing of
    other tasks. Then at most a share p = 1 - 0.025^(1/n) of these differs, as in paired_gain. Raises ValueError on no
    values.
    """
    if not values:
        raise ValueError("no values to average")
    n, mean = len(values), math.fsum(values) / len(values)
    if max(values) - min(values) < ROUNDING:
        share = 1 - 0.025 ** (1 / n)
        return mean, mean - share * (mean - bounds[0]), mean + share * (bounds[1] - mean)
    draw = random.Random(0)  # with a fixed seed
    means = sorted(math.fsum(draw.choices(values, k=n)) / n for _ in range(RESAMPLES))
    beyond = round(0.025 * RESAMPLES)
    return mean, means[beyond], means[-beyond - 1]


def student_t(confidence: float, df: int) -> float:
    """Returns t with P(|T| < t) = confidence at `df` degrees of freedom, by bisection. 0 <= confidence < 1, df >= 1."""
    low, high = 0.0, 1.0
    while _student_mass(high, df) < confidence:
        low, high = high, 2 * high
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_mass(middle, df) < confidence else (low, middle)
    return high


def _student_mass(t: float, df: int) -> float:
    """Returns P(|T| < t) for whole degrees of freedom: Abramowitz and Stegun, 26.7.3 (odd) and 26.7.4 (even)."""
    angle = math.atan(t / math.sqrt(df))
    odd = df % 2
    term, total = (math.cos(angle), 0.0) if odd else (1.0, 0.0)
    for k in range(2 + odd, df + 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (k - 1) / k
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total


def seed_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Returns (mean, low, high): Student's 95% interval of the mean over seeds, n - 1 degrees of freedom.

    Raises ValueError on no values. One value says nothing about the spread, so its interval is infinite.
    """
    if not values:
        raise ValueError("no values to average")
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return mean, -math.inf, math.inf
    half = student_t(0.95, len(values) - 1) * spread(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def paired_test(differences: Sequence[float]) -> tuple[float, float, float, float]:
    """Returns (mean, low, high, p) of paired differences over seeds: Student's 95% interval and two-sided p-value.

    If all are equal and not 0, their spread says nothing of other seeds: the interval is infinite and p is 1.
    Raises ValueError for fewer than two differences.
    """
    if len(differences) < 2:
        raise ValueError("a paired test needs two differences")
    mean, low, high = seed_interval(differences)
    if _without_spread(differences):
        return mean, -math.inf, math.inf, 1.0
    error = spread(differences) / math.sqrt(len(differences))
    if not error:
        return mean, low, high, 1.0
    return mean, low, high, max(0.0, 1.0 - _student_mass(abs(mean) / error, len(differences) - 1))


def _without_spread(differences: Sequence[float]) -> bool:
    """Returns whether all differences are equal and not 0. All-zero differences mean identical
    arms, so their spread is known."""
    return max(differences) - min(differences) < ROUNDING <= max(map(abs, differences))


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns Holm's adjusted p-values, in the given order (Holm 1979, step-down)."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, running = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        running = adjusted[i] = min(1.0, max(running, (len(p_values) - rank) * p_values[i]))
    return adjusted


def detectable(differences: Sequence[float]) -> float:
    """Returns the smallest true mean difference that such pairs find with 80% power, two-sided at 5%.

    (t_0.975 + t_0.80) s / sqrt(n), with n - 1 degrees of freedom. Infinite for fewer than two pairs, and if all are
    equal and not 0.
    """
    if len(differences) < 2 or _without_spread(differences):
        return math.inf
    df = len(differences) - 1
    return (student_t(0.95, df) + student_t(0.6, df)) * spread(differences) / math.sqrt(len(differences))


def spread(values: Sequence[float]) -> float:
    """Returns the sample standard deviation (ddof 1) of at least two values."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
