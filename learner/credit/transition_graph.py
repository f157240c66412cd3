"""The transitions of one group, and the values that solve Bellman's equation on them without one of its episodes.

    (N(s) + κ) V(s) = Σ over visits of s [r + γ V(s')] + κ m          V = 0 after the last step

Most states of a group belong to one episode alone. Their equations are those of that episode, whoever else is left out,
so they are eliminated once. What is left is one small system over the shared states for each episode that is left out:

    own states X of an episode      V_X = B (g_X + κ m + γ M_XS V_S)      B = (N_X + κ - γ M_XX)⁻¹
    its part of the shared system   C = N_S - γ M_SS - γ M_SX B γ M_XS
    the shared states S             (κ + Σ C) V_S = κ m + Σ [g_S + γ M_SX B (g_X + κ m)]

N counts visits, M transitions, and g adds rewards, each within one episode; Σ goes over the episodes that are kept. The
elimination is exact: κ > 0 makes every diagonal dominant.

Shapes: K episodes, S shared states, X own states of the episode that has most of them, W solutions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from learner.credit.group_operations import average
from learner.credit.types import Array, CreditStep, Group, Nested

SHARED = -1
"""Owner of a state that several episodes visit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Values without one episode. Arrays are over all states, in the order of TransitionGraph.index."""

    values: Array
    """V, [K·X + S]; m for a state that no kept episode visited."""
    visits: Array
    """N, [K·X + S]."""
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
        for i, path in enumerate(paths):
            for state in set(path):
                owner[state] = SHARED if state in owner else i
        numbers = dict.fromkeys([SHARED, *range(len(group))], 0)
        place: dict[str, int] = {}
        for state in sorted(owner):
            place[state] = numbers[owner[state]]
            numbers[owner[state]] += 1
        shared, own = numbers.pop(SHARED), max(numbers.values())
        self.index = {state: place[state] + (len(group) if of == SHARED else of) * own for state, of in owner.items()}
        """State -> its number in the arrays of a Solution."""
        local = {state: place[state] + own * (of == SHARED) for state, of in owner.items()}
        self._count([[local[state] for state in path] for path in paths], own + shared)
        self._eliminate(own, shared)

    def _count(self, paths: Sequence[Sequence[int]], size: int) -> None:
        """Sets N, g [K, X + S] and γM [K, X + S, X + S] of each episode. Paths number its own states first."""
        episodes = len(paths)
        flat = np.fromiter(chain.from_iterable(paths), dtype=np.intp)
        whose = np.repeat(np.arange(episodes), [len(path) for path in paths])
        at, goes_on = whose * size + flat, whose[:-1] == whose[1:]
        given = np.fromiter(chain.from_iterable(self._given), dtype=float)
        self._visits = np.bincount(at, minlength=episodes * size).reshape(episodes, size).astype(float)
        self._gains = np.bincount(at, given, episodes * size).reshape(episodes, size)
        counts = np.bincount((at[:-1] * size + flat[1:])[goes_on], minlength=episodes * size * size)
        self._moves = self._gamma * counts.reshape(episodes, size, size)

    def _eliminate(self, own: int, shared: int) -> None:
        """Sets what each episode's own states are worth, and each episode's part of the shared system."""
        moves, visits, gains = self._moves, self._visits, self._gains
        self._own = np.concatenate([gains[:, :own, None], np.ones((len(gains), own, 1)), moves[:, :own, own:]], axis=2)
        if own:
            block = -moves[:, :own, :own]
            block[:, range(own), range(own)] += visits[:, :own] + self.prior
            self._own = np.linalg.solve(block, self._own)  # B g, B 1 and γ B M_XS as columns, [K, X, 2 + S]
        led = moves[:, own:, :own] @ self._own
        self._shared_gains, self._shared_priors = gains[:, own:] + led[:, :, 0], led[:, :, 1]
        self._parts = led[:, :, 2:]
        self._parts += moves[:, own:, own:]
        np.negative(self._parts, out=self._parts)
        self._parts[:, range(shared), range(shared)] += visits[:, own:]
        self._all_parts = self._parts[self._order].sum(0)
        self._all_parts[range(shared), range(shared)] += self.prior

    def values(self, without: int | None) -> Solution:
        """Returns the values from all episodes but `without`."""
        return self.solutions([without])[0]

    def solutions(self, withouts: Sequence[int | None]) -> list[Solution]:
        """Returns the values for each episode that is left out (None: no episode), solved in one call."""
        kept = [[i for i in self._order if i != without] for without in withouts]
        means = [average(sorted(self._starts[i] for i in some)) if some else 0.0 for some in kept]
        priors = self.prior * np.array(means)
        right = np.stack([self._shared_gains[some].sum(0) + prior * (1 + self._shared_priors[some].sum(0))
                          for some, prior in zip(kept, priors, strict=True)])
        systems = np.stack([self._all_parts if without is None else self._all_parts - self._parts[without]
                            for without in withouts])
        shared = np.linalg.solve(systems, right[..., None])[..., 0]
        own = (self._own[:, :, 0, None] + self._own[:, :, 1, None] * priors
               + self._own[:, :, 2:] @ shared.T)  # [K, X, W]
        visits, width = self._visits, self._own.shape[1]
        total = visits[:, width:].sum(0)
        found: list[Solution] = []
        for w, without in enumerate(withouts):
            values, counts, rest = own[:, :, w].copy(), visits[:, :width].copy(), total
            if without is not None:
                values[without], counts[without], rest = means[w], 0.0, total - visits[without, width:]
            found.append(Solution(values=np.concatenate([values.ravel(), shared[w]]),
                                  visits=np.concatenate([counts.ravel(), rest]), mean=means[w]))
        return found

    def outcomes(self, state: str, solution: Solution, without: int | None) -> list[float]:
        """Returns r + γ V(s') for each visit of a state by an episode that is kept."""
        return [self._given[i][t] + (self._gamma * float(solution.values[self.index[episode[t + 1].state]])
                                     if t + 1 < len(episode) else 0.0)
                for i, episode in enumerate(self._group) if i != without
                for t, step in enumerate(episode) if step.state == state]

    def along(self, episode: Sequence[CreditStep], solution: Solution) -> tuple[list[float], list[float]]:
        """Returns V and N at each step of an episode, and at the state that it was cut in, if it was.

        A state without visits carries the value of the step before, m at the first step.
        """
        values, counted, value = solution.values.tolist(), solution.visits.tolist(), solution.mean
        cut = episode[-1].cut_in
        row: list[float] = []
        counts: list[float] = []
        for state in [*(step.state for step in episode), *([] if cut is None else [cut])]:
            found = self.index.get(state)
            count = 0.0 if found is None else counted[found]
            if found is not None and count:
                value = values[found]
            row.append(value)
            counts.append(count)
        return row, counts
