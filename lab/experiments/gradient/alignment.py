"""How much of an estimator's gradient is signal, and how near it lies to the gradient of success.

Legend: U groups of episodes of one policy, each of another task; g_u the gradient that the estimator makes of group u,
t_u an unbiased estimate of the gradient of success from the same group, times a constant, which no cosine sees. Groups
are independent, so products of *two* groups estimate products of means without the noise of either:

    signal  s = mean over u ≠ v of g_u·g_v          estimates |E g|²
    noise   n = mean over u of g_u·g_u - s           estimates E|g_u - E g|²
    aim     c = mean over u ≠ v of g_u·t_v           estimates E g · ∇J

A learner step adds up B groups. Of its squared length the part s / (s + n/B) is signal. The cosine between E g and ∇J
is c / √(s s_t), and that between ∇J and one step at its root mean square length is c / √(s_t (s + n/B)): the first one
times the root of that part. The last one is the first-order gain in success of a step of unit length, in units of |∇J|.
Intervals are the jackknife's over groups (Efron and Tibshirani, An Introduction to the Bootstrap, chapter 11).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from services.errors import UserError
from services.statistics import Z95

Floats = npt.NDArray[np.float64]
Gradients = npt.NDArray[np.float32]
Products = npt.NDArray[np.float32]
FEWEST = 3
"""Fewest groups. Without one of them two must be left, whose product tells signal from noise."""
UNTOLD = "-"
"""Stands in a table for a figure that has no interval."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with the half-width of its 95% interval."""

    value: float
    half: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """One estimator's row of the table."""

    arm: str
    signal: Interval
    """Part of a step's squared length that is signal."""
    direction: Interval
    """Cosine between the mean gradient and the gradient of success."""
    gain: Interval
    """Cosine between one step, at its root mean square length, and the gradient of success."""
    against: Interval
    """Its gain divided by that of the first arm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyGradients:
    """The gradients that estimators make of the same groups of one policy."""

    policy: str
    """Names the policy for people."""
    per_step: int
    """B, the groups of a learner step."""
    arms: Mapping[str, Gradients]
    """[U, parameters] by arm."""
    success: Gradients
    """t_u, [U, parameters]."""


def tables_of(policy: PolicyGradients) -> list[str]:
    """Returns two tables, of the gradients and of the steps that Adam makes of them, or a line that says why there is
    nothing to compare with. Raises UserError for fewer than FEWEST groups.
    """
    if len(policy.success) < FEWEST:
        raise UserError(f"{len(policy.success)} groups are too few for an interval", "give at least three")
    title = f"{policy.policy}, {len(policy.success)} groups, {policy.per_step} of them a step"
    if not policy.success.any():
        return [f"{title}: no group has both won and lost episodes, so nothing tells the gradient of success", ""]
    scaled = ((arm, adam_steps(own)) for arm, own in policy.arms.items())  # one arm's copy at a time
    return [*as_lines(f"{title}: plain gradients", alignments(policy.arms.items(), policy)),
            *as_lines(f"{title}: as Adam scales them", alignments(scaled, policy))]


def alignments(gradients: Iterable[tuple[str, Gradients]], policy: PolicyGradients) -> list[Alignment]:
    """Returns a row for each arm and its gradients [U, parameters], which are `policy.arms` in some scale."""
    true = policy.success
    truth = true @ true.T
    found = {arm: measured(own @ own.T, own @ true.T, truth, policy.per_step) for arm, own in gradients}
    first = next(iter(found.values()))
    with np.errstate(divide="ignore", invalid="ignore"):
        return [Alignment(arm=arm, signal=_jackknife(own.signal), direction=_jackknife(own.direction),
                          gain=_jackknife(own.gain), against=_jackknife(own.gain / first.gain))
                for arm, own in found.items()]


class Measures(NamedTuple):
    """The measures of all groups, then without each of the groups, [1 + U] each."""

    signal: Floats
    direction: Floats
    gain: Floats


def measured(own: Products, aim: Products, truth: Products, per_step: int) -> Measures:
    """Returns the measures from the products g_u·g_v, g_u·t_v and t_u·t_v, [U, U] each.

    What too few groups cannot tell is not a finite number: a length of the mean gradient whose estimated square is
    negative or 0.
    """
    s, c, true = _between(own), _between(aim), _between(truth)
    squares = np.diag(own).astype(np.float64)
    each = np.append(squares.mean(), (squares.sum() - squares) / (len(squares) - 1))
    step = s + (each - s) / per_step
    with np.errstate(divide="ignore", invalid="ignore"):
        return Measures(signal=s / step, direction=c / np.sqrt(s) / np.sqrt(true),
                        gain=c / np.sqrt(step) / np.sqrt(true))


def _between(products: Products) -> Floats:
    """Returns the mean product of two groups, those off the diagonal: of all groups, then without each one, [1 + U]."""
    count, apart = len(products), products.astype(np.float64)
    np.fill_diagonal(apart, 0.0)
    total, of_group = apart.sum(), apart.sum(axis=0) + apart.sum(axis=1)
    return np.append(total / (count * (count - 1)), (total - of_group) / ((count - 1) * (count - 2)))


def _jackknife(values: Floats) -> Interval:
    """Returns the interval of values [1 + U]: of all groups, then without each one."""
    value, without = float(values[0]), values[1:]
    error = math.sqrt((len(without) - 1) / len(without) * float(((without - without.mean()) ** 2).sum()))
    return Interval(value, Z95 * error)


def adam_steps(gradients: Gradients) -> Gradients:
    """Returns the gradients [U, parameters] as Adam takes them: each parameter divided by its root mean square.

    Parameters without a gradient stay at 0. Source: arXiv 1412.6980, algorithm 1, without momentum and ε, and with the
    squares of groups instead of steps. The scale is that of all groups, and intervals take it as given.
    """
    scale = np.sqrt(np.einsum("up,up->p", gradients, gradients, dtype=np.float64) / len(gradients))
    return np.divide(gradients, scale.astype(np.float32), out=np.zeros_like(gradients), where=scale > 0)


def as_lines(title: str, rows: Sequence[Alignment]) -> list[str]:
    """Returns the table of one policy."""
    table = [[_shown(part) for part in (one.signal, one.direction, one.gain, one.against)] for one in rows]
    lines = [title, f"  {'arm':18}{'signal':>16}{'direction':>16}{'gain':>16}{'of the first':>16}"]
    lines += [f"  {one.arm:18}" + "".join(f"{cell:>16}" for cell in cells)
              for one, cells in zip(rows, table, strict=True)]
    if any(UNTOLD in cells for cells in table):
        lines.append(f"  {UNTOLD} these groups are too few to tell this figure from noise: it needs more of them")
    return [*lines, ""]


def _shown(one: Interval) -> str:
    """Returns the figure with its interval. Without some of the groups it may be no number, so its interval is none."""
    return f"{one.value:.3f} ±{one.half:.3f}" if math.isfinite(one.half) else UNTOLD


def success_credit(won: Sequence[bool], lengths: Sequence[int]) -> list[list[float]]:
    """Returns for each turn of K >= 2 episodes their success minus the mean success of the others, [episode][turn].

    The mean of its sum of score gradients is K times the gradient of the success rate, whatever the turns were worth
    (RLOO, arXiv 2402.14740, equation 7, without a penalty and without discounting).
    """
    others = len(won) - 1
    return [[float(one) - (sum(won) - one) / others] * length for one, length in zip(won, lengths, strict=True)]
