"""GAGPO with values from the group's transition graph instead of mean returns (ours; docs/experiments/loglinear.md).

    (N(s) + κ) V(s) = Σ over visits of s [r + γ V(s')] + κ m      one linear system per episode i, from the others
    λ_t = 1 - (1 - λ) N(s_t) / (N(s_t) + κ)                       soft: few visits, little bootstrapping
    δ_t = r_t + γ V(s_{t+1}) - V(s_t)                             V = 0 after the last step
    Â_t = δ_t + γ λ_{t+1} Â_{t+1}
    A_t = (Â_t - μ) / (σ + ε)                                     less the local penalty, which comes last

N(s) counts visits by the other episodes, s' is the state after a visit, m the mean start return of the other episodes,
κ = prior. A mean of returns knows only how the visitors of s went on; the system also knows how other episodes went on
from the states that s leads to. A state that no other episode visited carries the value of the step before, with λ = 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from typing import ClassVar

import numpy as np

from learner.credit.group_operations import (
    backward_by_step,
    discounted,
    normalized,
    normalized_together,
    penalized,
    rewards,
    states,
)
from learner.credit.types import Array, Credit, CreditStep, Group, Nested
from services.config.tree import CreditSection


@dataclass(frozen=True, slots=True)
class GagpoGraph:
    """Graph values. `leave_out`: episode i's values come from the other episodes alone, else from the whole group."""

    needs_tokens: ClassVar[bool] = False
    needs_critic: ClassVar[bool] = False
    leave_out: bool = True

    def reads(self, options: CreditSection) -> frozenset[str]:  # noqa: ARG002 the same keys under all options
        """Returns the keys that the formulas read."""
        return frozenset({"gamma", "lam", "penalty", "penalty_mode", "normalize", "ddof", "bootstrap", "prior",
                          "state_key"})

    def group(self, group: Group, options: CreditSection) -> Credit:
        """Returns the credit of one group; see the module's formulas."""
        returns, given = discounted(group, options), rewards(group, options)
        graph = Graph(group, given, [row[0] for row in returns], options)
        whole = None if self.leave_out else graph.values(None)
        baselines: Nested = []
        deltas: Nested = []
        raw: Nested = []
        for i, episode in enumerate(group):
            v, visits = graph.along(episode, whole or graph.values(i))
            after = v[1:] if options.bootstrap and episode[-1].cut_in is not None else [*v[1:len(episode)], 0.0]
            deltas.append([r + options.gamma * after[t] - v[t] for t, r in enumerate(given[i])])
            raw.append(backward_by_step(deltas[-1], [_decay(count, options) for count in visits]))
            baselines.append(v[:len(episode)])
        scaled = normalized(raw, options.ddof) if options.normalize == "group" else raw
        return Credit(returns=returns, values=None, deltas=deltas, raw_advantages=raw, states=states(group),
                      advantages=penalized(scaled, group, options), baselines=baselines)

    def batch(self, credits: list[Credit], options: CreditSection) -> list[Credit]:
        """Normalises all groups together if `normalize` is `batch`."""
        return normalized_together(credits, options)


class Graph:
    """The transitions of one group, [S] states and [K] episodes."""

    def __init__(self, group: Group, given: Nested, starts: list[float], options: CreditSection) -> None:
        self._index = {state: i for i, state in enumerate(dict.fromkeys(
            step.state for episode in group for step in episode))}
        size, episodes = len(self._index), len(group)
        self._starts, self._options = starts, options
        self._visits = np.zeros((episodes, size))
        self._rewards = np.zeros((episodes, size))
        self._moves = np.zeros((episodes, size, size))
        for i, (episode, row) in enumerate(zip(group, given, strict=True)):
            at = [self._index[step.state] for step in episode]
            np.add.at(self._visits[i], at, 1.0)
            np.add.at(self._rewards[i], at, row)
            np.add.at(self._moves[i], (at[:-1], at[1:]), 1.0)

    def values(self, without: int | None) -> tuple[Array, Array, float]:
        """Returns V [S], N [S] and m, from all episodes but `without`."""
        kept = [i for i in range(len(self._starts)) if i != without]
        visits, moves = self._visits[kept].sum(0), self._moves[kept].sum(0)
        mean = fsum(self._starts[i] for i in kept) / len(kept) if kept else 0.0
        prior = self._options.prior
        system = np.diag(visits + prior) - self._options.gamma * moves
        seen = visits > 0
        v = np.full(len(visits), mean)
        if seen.any():
            # Moves lead from seen states to seen ones: a visited state's successor was visited by the same episode.
            v[seen] = np.linalg.solve(system[np.ix_(seen, seen)],
                                      self._rewards[kept].sum(0)[seen] + prior * mean)
        return v, visits, mean

    def along(self, episode: Sequence[CreditStep],
              solved: tuple[Array, Array, float]) -> tuple[list[float], list[float]]:
        """Returns V and N at each step of an episode, and at the state that it was cut in, if it was."""
        v, visits, value = solved
        cut = episode[-1].cut_in
        row: list[float] = []
        counts: list[float] = []
        for state in [*(step.state for step in episode), *([] if cut is None else [cut])]:
            found = self._index.get(state)
            count = float(visits[found]) if found is not None else 0.0
            if found is not None and count:
                value = float(v[found])
            row.append(value)
            counts.append(count)
        return row, counts


def _decay(count: float, options: CreditSection) -> float:
    """Returns γ λ_t of a state with so many visits."""
    share = count / (count + options.prior) if count else 0.0
    return options.gamma * (1.0 - (1.0 - options.lam) * share)
