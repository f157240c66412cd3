"""The transitions of one group, and the values that solve Bellman's equation on them without one of its episodes.

    (N(s) + κ) V(s) = Σ over visits of s [r + γ V(s')] + κ m          V = 0 after the last step

Most states of a group belong to one episode alone. Their equations are those of that episode, whoever else is left out,
so they are eliminated once. What is left is one small system over the shared states for each episode that is left out:

    own states X of an episode      V_X = B (g_X + κ m + γ M_XS V_S)      B = (N_X + κ - γ M_XX)⁻¹
    its part of the shared system   C = N_S - γ M_SS - γ M_SX B γ M_XS
    the shared states S             (κ + Σ C) V_S = κ m + Σ [g_S + γ M_SX B (g_X + κ m)]

N counts visits, M transitions, and g adds rewards, each within one episode; Σ goes over the episodes that are kept. The
elimination is exact: κ > 0 makes every diagonal dominant. With κ = 0 the solution is unique, too, if no episode is left
out: from every state the episodes that visit it reach their end.

Shapes: K episodes, S shared states, X own states of the episode that has most of them, W solutions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import numpy as np
import numpy.typing as npt

from learner.credit.group_operations import average
from learner.credit.types import Array, Group, Nested

AnyArray = npt.NDArray[Any]
"""numpy gives the result of linear algebra no exact type."""
MOST_ENTRIES = 1 << 20
"""Most float64 entries that one call of numpy computes at once: 8 MiB."""
SHARED = -1
"""Owner of a state that several episodes visit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Values without one episode, on the shared states; those of the other states follow from them (`value`)."""

    without: int | None
    """The episode that is left out; None: none is."""
    shared: Array
    """V_S, [S]."""
    visits: Array
    """N_S, [S]."""
    mean: float
    """m, the mean start return of the kept episodes."""


class TransitionGraph:
    """The transitions of one group."""

    def __init__(self, group: Group, given: Nested, *, starts: Sequence[float], gamma: float, prior: float) -> None:
        """`given` are the rewards r_t; `starts` the returns from the first step, [K]."""
        self._group, self._given, self._starts, self._gamma, self.prior = group, given, starts, gamma, prior
        # Sums go in an order that does not depend on that of the episodes, so neither does any bit of the result.
        paths = [[step.state for step in episode] for episode in group]
        self._order = sorted(range(len(group)), key=lambda i: (paths[i], given[i]))
        owner: dict[str, int] = {}
        for i in self._order:
            for state in dict.fromkeys(paths[i]):
                owner[state] = SHARED if state in owner else i
        numbers = dict.fromkeys([SHARED, *range(len(group))], 0)
        place: dict[str, int] = {}
        for state, of in owner.items():
            place[state] = numbers[of]
            numbers[of] += 1
        shared, own = numbers.pop(SHARED), max(numbers.values())
        self._place = {state: (of, place[state] + own * (of == SHARED)) for state, of in owner.items()}
        self._paths = [[self._place[state][1] for state in path] for path in paths]
        self._count(own + shared)
        self._eliminate(own, shared)

    def _count(self, size: int) -> None:
        """Sets N and g of each episode, [K, X + S], and the places of its steps. An episode's own states come first."""
        lengths = [len(path) for path in self._paths]
        self._flat = np.fromiter(chain.from_iterable(self._paths), dtype=np.intp)
        self._whose = np.repeat(np.arange(len(lengths)), lengths)
        self._begins = [0, *accumulate(lengths)]
        at, entries = self._whose * size + self._flat, len(lengths) * size
        given = np.fromiter(chain.from_iterable(self._given), dtype=float)
        self._visits = np.bincount(at, minlength=entries).reshape(-1, size).astype(float)
        self._gains = np.bincount(at, given, entries).reshape(-1, size)

    def _moves(self, episodes: range, size: int) -> Array:
        """Returns γM of these episodes, [K, X + S, X + S]."""
        steps = slice(self._begins[episodes.start], self._begins[episodes.stop])
        flat, whose = self._flat[steps], self._whose[steps] - episodes.start
        at, goes_on = (whose * size + flat) * size, whose[:-1] == whose[1:]
        counts = np.bincount((at[:-1] + flat[1:])[goes_on], minlength=len(episodes) * size * size)
        moves: AnyArray = self._gamma * counts.reshape(-1, size, size)
        return moves

    def _eliminate(self, own: int, shared: int) -> None:
        """Sets the solution for each episode's own states, and its part of the shared system."""
        episodes = len(self._paths)
        # B g, B 1 and γ B M_XS as columns. The parts: C, then its right sides by g and by κ m, and N, as columns.
        self._own, self._parts = np.empty((episodes, own, 2 + shared)), np.empty((episodes, shared, shared + 3))
        self._total = np.zeros((shared, shared + 3))
        for chunk in _chunks(episodes, (own + shared) ** 2):
            some = slice(chunk.start, chunk.stop)
            moves, visits, gains = self._moves(chunk, own + shared), self._visits[some], self._gains[some]
            right = np.concatenate([gains[:, :own, None], np.ones((len(gains), own, 1)), moves[:, :own, own:]], axis=2)
            if own:
                block = -moves[:, :own, :own]
                weight = visits[:, :own] + self.prior
                _diagonals(block)[...] += np.where(weight > 0, weight, 1.0)  # an episode may have fewer own states
                self._own[some] = np.linalg.solve(block, right)
            led = moves[:, own:, :own] @ self._own[some]
            system = -(led[:, :, 2:] + moves[:, own:, own:])
            _diagonals(system)[...] += visits[:, own:]
            np.concatenate([system, gains[:, own:, None] + led[:, :, :1], led[:, :, 1:2], visits[:, own:, None]],
                           axis=2, out=self._parts[some])
        for chunk in _chunks(episodes, self._total.size):
            self._total += self._parts[self._order[chunk.start:chunk.stop]].sum(0)
        _diagonals(self._total[:, :shared])[...] += self.prior

    def values(self, without: int | None) -> Solution:
        """Returns the values from all episodes but `without`."""
        return self.solutions([without])[0]

    def solutions(self, withouts: Sequence[int | None]) -> list[Solution]:
        """Returns the values for each episode that is left out (None: no episode), solved in few calls."""
        return [one for chunk in _chunks(len(withouts), self._total.size)
                for one in self._solved(withouts[chunk.start:chunk.stop])]

    def _solved(self, withouts: Sequence[int | None]) -> list[Solution]:
        others = [[start for i, start in enumerate(self._starts) if i != without] for without in withouts]
        means = [average(sorted(starts)) if starts else 0.0 for starts in others]
        leaves_out = np.array([without is not None for without in withouts], dtype=float)[:, None, None]
        kept: Array = self._total - leaves_out * self._parts[[without or 0 for without in withouts]]
        system, gains, priors, visits = kept[:, :, :-3], kept[:, :, -3], kept[:, :, -2], kept[:, :, -1].copy()
        right = gains + self.prior * np.array(means)[:, None] * (1 + priors)
        shared: AnyArray = np.linalg.solve(system, right[..., None])[..., 0]
        return [Solution(without=without, shared=values, mean=mean, visits=counts)
                for without, values, mean, counts in zip(withouts, shared, means, visits, strict=True)]

    def value(self, state: str, solution: Solution) -> tuple[float, float]:
        """Returns V and N of a state; N = 0 and V = m if no kept episode visited it."""
        owner, at = self._place.get(state, (solution.without, 0))
        if owner is None or owner == solution.without:
            return solution.mean, 0.0
        if owner == SHARED:
            at -= self._own.shape[1]
            return float(solution.shared[at]), float(solution.visits[at])
        return float(self._own_values(owner, solution)[at]), float(self._visits[owner, at])

    def _own_values(self, episode: int, solution: Solution) -> Array:
        """Returns V_X of a kept episode, [X]."""
        return self._own[episode] @ np.concatenate([[1.0, self.prior * solution.mean], solution.shared])

    def outcomes(self, state: str, solution: Solution) -> list[float]:
        """Returns r + γ V(s') for each visit of a state by an episode that is kept."""
        return [self._given[i][t] + (self._gamma * self.value(episode[t + 1].state, solution)[0]
                                     if t + 1 < len(episode) else 0.0)
                for i, episode in enumerate(self._group) if i != solution.without
                for t, step in enumerate(episode) if step.state == state]

    def everywhere(self, solution: Solution) -> Array:
        """Returns V of the state of each step, [N] episode by episode, from a solution that leaves out no episode."""
        assert solution.without is None
        own: AnyArray = self._own @ np.concatenate([[1.0, self.prior * solution.mean], solution.shared])
        shared = np.broadcast_to(solution.shared, (len(own), len(solution.shared)))
        return np.concatenate([own, shared], axis=1)[self._whose, self._flat]

    def along(self, episode: int, solution: Solution) -> tuple[list[float], list[float]]:
        """Returns V and N at each step of an episode, and at the state that it was cut in, if it was.

        A state without visits carries the value of the step before, m at the first step.
        """
        width = self._own.shape[1]
        kept = episode != solution.without
        own = self._own_values(episode, solution) if kept else np.zeros(width)
        values = [*own.tolist(), *solution.shared.tolist()]
        visits = [*(self._visits[episode, :width].tolist() if kept else own.tolist()), *solution.visits.tolist()]
        pairs = [(values[at], visits[at]) for at in self._paths[episode]]
        cut = self._group[episode][-1].cut_in
        if cut is not None:
            pairs.append(self.value(cut, solution))
        row: list[float] = []
        value = solution.mean
        for here, count in pairs:
            value = here if count else value
            row.append(value)
        return row, [count for _, count in pairs]


def _chunks(count: int, entries: int) -> list[range]:
    """Returns range(count) in consecutive parts. One matrix of `entries` entries for each number of a part is at most
    MOST_ENTRIES entries, unless the part is one number. So hundreds of long episodes need little extra memory."""
    at_once = max(1, MOST_ENTRIES // max(1, entries))
    return [range(first, min(count, first + at_once)) for first in range(0, count, at_once)]


def _diagonals(matrices: AnyArray) -> AnyArray:
    """Returns a view of the diagonals of square matrices, [..., X, X] -> [..., X]."""
    return np.einsum("...ii->...i", matrices)
