"""Operations that the estimators share: rewards, returns, scores, penalty, means and spreads. Lists: [episode][step].

The penalty p of an invalid step has the same meaning in every estimator:
    local    p is subtracted only from that step's credit: its score S, step return Q, Â or A; never from a return R̂
    reward   p is subtracted from its reward r_t, so that it also changes all earlier steps and the episode's score
    none     invalid steps are treated like others
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from math import fsum, sqrt
from typing import Literal

import numpy as np
import numpy.typing as npt

from learner.credit.options import CreditOptions, ScaleOptions
from learner.credit.types import ZERO, Array, Credit, Group, Nested, flat, nested

EPSILON = 1e-6
Integers = npt.NDArray[np.int64]


def rewards(group: Group, options: CreditOptions) -> Nested:
    """Returns r_t, minus the penalty in mode `reward`."""
    if options.penalty_mode == "reward":
        return [[step.reward - options.penalty * step.invalid for step in episode] for episode in group]
    return [[step.reward for step in episode] for episode in group]


def penalized(rows: Nested, group: Group, options: CreditOptions) -> Nested:
    """Returns the rows, minus the penalty of invalid steps in mode `local`; unchanged in the other modes."""
    if options.penalty_mode != "local":
        return rows
    return [[x - options.penalty if step.invalid else x for x, step in zip(row, episode, strict=True)]
            for row, episode in zip(rows, group, strict=True)]


def backward(row: Sequence[float], decay: float) -> list[float]:
    """Returns x_t + decay x_{t+1} + decay² x_{t+2} + ... for each t, [T]."""
    out, total = [0.0] * len(row), 0.0
    for t in range(len(row) - 1, -1, -1):
        total = out[t] = row[t] + decay * total
    return out


def backward_by_step(row: Sequence[float], decays: Sequence[float]) -> list[float]:
    """Returns out_t = x_t + decay_{t+1} · out_{t+1}, [T]. decay_0 has no effect."""
    out, total = [0.0] * len(row), 0.0
    for t in range(len(row) - 1, -1, -1):
        total = out[t] = row[t] + total
        total *= decays[t]
    return out


def discounted(group: Group, options: CreditOptions) -> Nested:
    """Returns R̂_t = r_t + γ R̂_{t+1}, with R̂ = 0 after the last step."""
    return [backward(row, options.gamma) for row in rewards(group, options)]


def scores(group: Group, options: CreditOptions,
           statistics: Literal["rows", "trajectories"] = "rows") -> tuple[Nested, list[float]]:
    """Returns row scores S_it, and the sample for their mean and spread.

    S_it = R_i, the episode's undiscounted reward, minus the local penalty of step (i, t). The sample has all S_it
    (statistics `rows`), or each R_i once, without a local penalty (`trajectories`).
    """
    totals = [fsum(row) for row in rewards(group, options)]
    rows = penalized([[total] * len(episode) for total, episode in zip(totals, group, strict=True)], group, options)
    return rows, totals if statistics == "trajectories" else list(chain.from_iterable(rows))


def by_state(group: Group, rows: Nested) -> dict[str, list[float]]:
    """Returns state -> the numbers of all steps in it. Every occurrence counts, also repeats within one episode."""
    samples: dict[str, list[float]] = {}
    for episode, row in zip(group, rows, strict=True):
        for step, x in zip(episode, row, strict=True):
            samples.setdefault(step.state, []).append(x)
    return samples


def state_values(group: Group, rows: Nested) -> dict[str, tuple[float, int]]:
    """Returns state -> (mean, occurrences)."""
    return {state: (average(xs), len(xs)) for state, xs in by_state(group, rows).items()}


def average(xs: Sequence[float]) -> float:
    """Returns the mean. It does not depend on the order (fsum), and for equal numbers it is exactly their value."""
    return xs[0] if min(xs) == max(xs) else fsum(xs) / len(xs)


def same(sample: Sequence[float]) -> bool:
    """Returns whether the numbers are equal up to rounding."""
    low, high = min(sample), max(sample)
    return high - low <= ZERO * max(1.0, abs(low), abs(high))


def center(sample: Sequence[float], ddof: int) -> tuple[float, float]:
    """Returns mean and spread, the standard deviation + ε. They do not depend on the order of the sample.

    A single number cannot be compared: (0, 1). Numbers that are equal up to rounding, such as sums of the same rewards
    in another order, have no spread: (their mean, 1). So neither their rounding nor a penalised step outside the sample
    is magnified by 1/ε. The deviations of exactly equal numbers are exactly 0.
    """
    if len(sample) == 1:
        return 0.0, 1.0
    if same(sample):
        return average(sample), 1.0
    mean = fsum(sample) / len(sample)
    return mean, sqrt(fsum([(d := x - mean) * d for x in sample]) / (len(sample) - ddof)) + EPSILON


def has_contrast(group: Group, returns: Nested) -> bool:
    """Returns whether any choice in the group can be compared with another one.

    It can if episodes have different returns from the start, or if a state has different returns R̂. Otherwise V̄(s) is
    the return of each step at s, and any other value of an estimator is its own bias, such as a baseline that lags
    behind the discount, or rounding. R̂_t takes two rounded operations a step, so differences up to 2 T ε max|R̂| are
    rounding (T: longest episode, ε = 2⁻⁵²). A single episode cannot be compared.
    """
    if len(group) < 2:
        return False
    largest = max(abs(x) for row in returns for x in row)
    rounding = 2 * max(map(len, group)) * 2.0**-52 * largest
    starts = [row[0] for row in returns]
    if max(starts) - min(starts) > rounding:  # most groups: their states need not be compared
        return True
    return any(max(sample) - min(sample) > rounding for sample in by_state(group, returns).values())


def credit_without_contrast(group: Group, options: CreditOptions, returns: Nested) -> Credit:
    """Returns the credit of a group without contrast: V̄ is the return itself, so δ = 0. A is 0 less a local penalty."""
    zeros = [[0.0] * len(row) for row in returns]
    penalties = penalized(zeros, group, options)
    return Credit(returns=returns, values=None, deltas=zeros, raw_advantages=zeros, advantages=penalties,
                  states=states(group), baselines=returns)


def state_numbers(group: Group) -> Integers:
    """Returns a number for the state of each step, [N] over the steps of the group. Equal states have equal numbers."""
    number: dict[str, int] = {}
    return np.array([number.setdefault(step.state, len(number)) for episode in group for step in episode])


def pool_centers(xs: Array, pools: Integers, ddof: int) -> tuple[Array, Array]:
    """Returns `center` of all numbers in the same pool, for each number: means and spreads, [N].

    They do not depend on the order of the numbers. A number that is alone in its pool has its own value and 1.
    """
    order = np.lexsort((xs, pools))
    x, pool = xs[order], pools[order]
    starts = np.flatnonzero(np.append(True, pool[1:] != pool[:-1]))
    counts = np.diff(starts, append=len(x))
    low, high = x[starts], x[starts + counts - 1]
    equal = high - low <= ZERO * np.maximum(1.0, np.maximum(np.abs(low), np.abs(high)))  # as in `center`
    means = np.repeat(np.where(low == high, low, np.add.reduceat(x, starts) / counts), counts)
    squares = np.add.reduceat((x - means) ** 2, starts) / np.maximum(counts - ddof, 1)
    spreads = np.repeat(np.where(equal, 1.0, np.sqrt(squares) + EPSILON), counts)
    back = np.argsort(order)
    return means[back], spreads[back]


def normalized(rows: Nested, ddof: int) -> Nested:
    """Returns (x - mean) / spread over all rows."""
    mean, spread = center(list(chain.from_iterable(rows)), ddof)
    return [[(x - mean) / spread for x in row] for row in rows]


def rescaled(rows: Nested, group: Group, options: ScaleOptions) -> Nested:
    """Returns the rows normalised over the group or over each state; unchanged for other values of `normalize`.

    `state`: (x - mean) / spread over the steps in the same state. A step that is alone in its state gets 0.
    """
    if options.normalize == "group":
        return normalized(rows, options.ddof)
    if options.normalize == "state":
        xs = flat(rows)
        means, spreads = pool_centers(xs, state_numbers(group), options.ddof)
        return nested((xs - means) / np.maximum(spreads, options.spread_floor), group)
    return rows


def normalized_together(credits: list[Credit], options: ScaleOptions) -> list[Credit]:
    """Returns the credits with Â of all groups normalised together under `normalize: batch`; else unchanged.

    The difference A - Â that `group` made, by a late penalty or an episode-level term, keeps its scale.
    """
    if options.normalize != "batch" or not credits:
        return credits
    mean, spread = center([x for credit in credits for row in credit.raw_advantages for x in row], options.ddof)
    return [replace(credit, advantages=[
        [(x - mean) / spread + (a - x) for x, a in zip(raw, row, strict=True)]
        for raw, row in zip(credit.raw_advantages, credit.advantages, strict=True)]) for credit in credits]


def plus(rows: Nested, weight: float, others: Nested) -> Nested:
    """Returns rows + weight · others."""
    return [[x + weight * y for x, y in zip(row, other, strict=True)] for row, other in zip(rows, others, strict=True)]


def states(group: Group) -> list[list[str]]:
    """Returns the state keys."""
    return [[step.state for step in episode] for episode in group]
