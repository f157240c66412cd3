"""The input and output types of credit assignment. Nested lists are always [episode][step]; numbers are float64.

Legend: R̂ discounted return, V̄ grouped value proxy, δ temporal-difference error, Â advantage before normalising,
A advantage that the loss sees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice

import msgspec
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Nested = list[list[float]]


ZERO = 1e-9
"""Advantages up to this size are rounding."""


class CreditStep(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One turn as input of credit: its state and its reward."""

    state: str
    """State key of s_t, before the action. Equal keys are pooled, so the key must tell groups and tasks apart."""
    reward: float
    """r_t, the reward of this step alone."""
    invalid: bool = False
    """Whether the output was malformed. The penalty applies to it."""
    tokens: int | None = None
    """Number of response tokens, for estimators that weigh steps by it; None if unknown."""
    action: str | None = None
    """The action as the environment got it, for estimators that compare actions; None if unknown."""
    admissible: bool = True
    """Whether the action was in the list of admissible ones, or there was no list."""
    tag: str = ""
    """The kind of reasoning that the output named, for estimators that reward it; "" if it named none."""
    cut_in: str | None = None
    """Key of the state in which a budget cut the episode, at its last step. None: it was not cut there, or that state
    has no key."""


Group = Sequence[Sequence[CreditStep]]
"""The K episodes of one task instance. None of them is empty, and none is padded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """The credit of one group."""

    returns: Nested
    """R̂_t = Σ_{u>=t} γ^(u-t) r_u."""
    values: dict[str, tuple[float, int]] | None
    """State -> (V̄, occurrences). None: states have no value, or one that depends on the episode (`baselines`)."""
    deltas: Nested | None
    """δ_t; None for estimators without it."""
    raw_advantages: Nested
    """Â_t before normalising; after the local penalty, unless the estimator subtracts that from A."""
    advantages: Nested
    """A_t, as in the loss."""
    states: list[list[str]]
    """The state keys, as given."""
    baselines: Nested | None = None
    """V at step t, for estimators whose value also depends on the episode. None: `values` has V, or there is none."""
    tokens: list[list[int]] | None = None
    """Number of response tokens of each step; None for estimators that do not weigh by it."""


def nested(flat: Array, like: Sequence[Sequence[object]]) -> Nested:
    """Cuts a flat array [N] into the lengths of `like`."""
    numbers = iter(flat.tolist())
    return [list(islice(numbers, len(episode))) for episode in like]


def flat(rows: Sequence[Sequence[float]]) -> Array:
    """Returns [episode][step] as a float64 array [N], episode by episode."""
    return np.fromiter(chain.from_iterable(rows), dtype=np.float64)


def mixed_share(credits: Sequence[Credit], lists: Sequence[Sequence[Sequence[str]]]) -> float | None:
    """Returns the share of mixed steps: of the group's other steps in the same state, more than half had other
    admissible actions. None if no step has a list.

    `lists`: [group][episode][step], the digest of the admissible actions; "" if there was no list.
    """
    if not any(any(row) for group in lists for row in group):
        return None
    mixed = steps = 0
    for credit, group in zip(credits, lists, strict=True):
        pairs = Counter(zip(chain.from_iterable(credit.states), chain.from_iterable(group), strict=True))
        sizes = Counter[str]()
        for (state, _), count in pairs.items():
            sizes[state] += count
        mixed += sum(count for (state, _), count in pairs.items() if 2 * (sizes[state] - count) > sizes[state] - 1)
        steps += sizes.total()
    return mixed / steps


def statistics(credits: Sequence[Credit]) -> dict[str, float]:
    """Returns the credit metrics of a learner step, over all steps of all its groups (figures 4 and 5, appendix C).

    group_size_mean: occurrences per distinct state. singleton_share: share of steps whose state no other step of
    the group has; share_2_4, share_5_8, share_above_8: share of steps whose state has so many (paper, table 5).
    active_share: share of steps with a non-zero advantage. flat_share: share of groups in which no step has one.
    advantage_iqr: interquartile range of A. share_above_one: share of steps with |A| > 1.
    advantage_mean, advantage_std (divisor N), advantage_min, advantage_max: of A.
    """
    sizes = [n for credit in credits for n in Counter(chain.from_iterable(credit.states)).values()]
    steps = sum(sizes)
    groups = [flat(credit.advantages) for credit in credits]
    advantages = np.concatenate(groups)
    low, high = np.percentile(advantages, [25, 75])
    return {
        "group_size_mean": float(np.mean(sizes)),
        "singleton_share": sizes.count(1) / steps,
        "share_2_4": sum(n for n in sizes if 2 <= n <= 4) / steps,
        "share_5_8": sum(n for n in sizes if 5 <= n <= 8) / steps,
        "share_above_8": sum(n for n in sizes if n > 8) / steps,
        "active_share": float(np.mean(np.abs(advantages) > ZERO)),
        "flat_share": float(np.mean([bool(np.all(np.abs(group) <= ZERO)) for group in groups])),
        "advantage_iqr": float(high - low),
        "share_above_one": float(np.mean(np.abs(advantages) > 1)),
        "advantage_mean": float(advantages.mean()),
        "advantage_std": float(advantages.std()),
        "advantage_min": float(advantages.min()),
        "advantage_max": float(advantages.max()),
    }
