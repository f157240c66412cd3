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
from typing import ClassVar

import numpy as np
from pydantic import Field

from learner.credit.explanation import (
    CalculationLine,
    Explanation,
    GroupScale,
    penalty_of,
    plain,
    recursion_line,
    scaled_line,
    value_at,
)
from learner.credit.gagpo import RECURSION, family_deltas, family_legend
from learner.credit.group_operations import (
    average,
    backward_by_step,
    discounted,
    normalized,
    normalized_together,
    penalized,
    rewards,
    states,
)
from learner.credit.options import RecursionOptions
from learner.credit.types import Array, Credit, CreditStep, Group, Nested


class GraphOptions(RecursionOptions):
    """Options of graph values."""

    prior: float = Field(default=2.0, gt=0)
    """κ: weight of the mean start return, as a number of visits by other episodes."""
    leave_out: bool = True
    """Whether an episode's values come from the other episodes alone, or from the whole group."""


class GagpoGraph:
    """Graph values."""

    Options: ClassVar = GraphOptions
    needs_tokens: ClassVar[bool] = False
    needs_critic: ClassVar[bool] = False

    def reads(self, options: GraphOptions) -> frozenset[str]:  # noqa: ARG002 the same keys under all options
        """The keys of GAGPO's recursion and those of its values."""
        return RECURSION | {"prior", "leave_out"}

    def group(self, group: Group, options: GraphOptions) -> Credit:
        """Returns the credit of one group; see the module's formulas."""
        returns, given = discounted(group, options), rewards(group, options)
        graph = Graph(group, given, [row[0] for row in returns], options)
        solved = graph.solutions(range(len(group))) if options.leave_out else [graph.values(None)] * len(group)
        baselines: Nested = []
        deltas: Nested = []
        raw: Nested = []
        for i, episode in enumerate(group):
            v, visits = graph.along(episode, solved[i])
            after = v[1:] if options.bootstrap and episode[-1].cut_in is not None else [*v[1:len(episode)], 0.0]
            deltas.append([r + options.gamma * after[t] - v[t] for t, r in enumerate(given[i])])
            raw.append(backward_by_step(deltas[-1], [_decay(count, options) for count in visits]))
            baselines.append(v[:len(episode)])
        scaled = normalized(raw, options.ddof) if options.normalize == "group" else raw
        return Credit(returns=returns, values=None, deltas=deltas, raw_advantages=raw, states=states(group),
                      advantages=penalized(scaled, group, options), baselines=baselines)

    def batch(self, credits: list[Credit], options: GraphOptions) -> list[Credit]:
        """Normalises all groups together if `normalize` is `batch`."""
        return normalized_together(credits, options)

    def legend(self, options: GraphOptions) -> dict[str, str]:
        """Says where V̄ comes from."""
        whose = "the other episodes" if options.leave_out else "the group"
        return family_legend(f"the value that solves V̄ = r + γ V̄(next) over all steps of {whose}", options)

    def explain(self, group: Group, credit: Credit, options: GraphOptions, episode: int) -> Explanation:
        """Shows one equation of the system for each step; the penalty comes off A."""
        steps, raw, scale = group[episode], credit.raw_advantages[episode], GroupScale.of(credit, options)
        graph = Graph(group, rewards(group, options), [row[0] for row in discounted(group, options)], options)
        without = episode if options.leave_out else None
        _, visits = graph.along(steps, graph.values(without))
        lines: Explanation = []
        for t, (step, delta) in enumerate(zip(steps, family_deltas(group, credit, options, episode), strict=True)):
            last = t + 1 == len(steps)
            decay = 0.0 if last else _decay(visits[t + 1], options)
            before = value_at(credit, episode, t - 1) if t else None
            lines.append([graph.equation(step.state, without, before), delta, recursion_line(
                (credit.deltas or [])[episode][t], None if last else raw[t + 1], decay,
                named=f"γλ Â(next), λ = {decay / options.gamma if options.gamma else 0.0:.3g}")])
            if options.normalize != "batch":
                lines[t].append(scaled_line(raw[t], scale, penalty=penalty_of(step, options)))
        return lines


class Graph:
    """The transitions of one group, [S] states and [K] episodes."""

    def __init__(self, group: Group, given: Nested, starts: list[float], options: GraphOptions) -> None:
        self._index = {state: i for i, state in enumerate(sorted({
            step.state for episode in group for step in episode}))}
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
        return self.solutions([without])[0]

    def solutions(self, withouts: Sequence[int | None]) -> list[tuple[Array, Array, float]]:
        """Returns V [S], N [S] and m for each episode that is left out (None: no episode), solved in one call.

        Nothing depends on the order of the episodes, to the last bit: states are in the order of their keys, numbers of
        visits are exact, and rewards are added in order of size.
        """
        prior, kept = self._options.prior, [self._kept(without) for without in withouts]
        visits = np.stack([self._visits[some].sum(0) for some in kept])
        moves = np.stack([self._moves[some].sum(0) for some in kept])
        means = [average(sorted(self._starts[i] for i in some)) if some else 0.0 for some in kept]
        gains = np.stack([np.sort(self._rewards[some], axis=0).sum(0) for some in kept])
        # Moves lead from seen states to seen ones, so a state that nobody saw stands alone: V = m. κ > 0 makes the
        # diagonal dominant, so every system has one solution.
        system = -self._options.gamma * moves
        at = np.arange(len(self._index))
        system[:, at, at] += visits + prior
        v = np.linalg.solve(system, (gains + prior * np.array(means)[:, None])[..., None])[..., 0]
        return [(v[i], visits[i], mean) for i, mean in enumerate(means)]

    def equation(self, state: str, without: int | None, before: float | None) -> CalculationLine:
        """Returns the line of V̄ of a state; `before`: V̄ of the step before, None at the first step."""
        v, visits, mean = self.values(without)
        kept, at, prior = self._kept(without), self._index[state], self._options.prior
        count = float(visits[at])
        if not count:
            value = mean if before is None else before
            named = "mean first R̂" if before is None else "V̄(before)"
            return CalculationLine(formula=f"V̄ = {named}, as no other episode was in this state = {plain(value)}",
                                   result=value)
        total = float(self._rewards[kept].sum(0)[at] + self._options.gamma * self._moves[kept].sum(0)[at] @ v)
        return CalculationLine(
            formula=f"V̄ = (Σ (r + γ V̄(next)) + κ · mean first R̂) / (N + κ), over N visits = "
                    f"({plain(total)} + {prior:g} · {plain(mean)}) / ({count:g} + {prior:g})",
            result=(total + prior * mean) / (count + prior))

    def _kept(self, without: int | None) -> list[int]:
        return [i for i in range(len(self._starts)) if i != without]

    def along(self, episode: Sequence[CreditStep],
              solved: tuple[Array, Array, float]) -> tuple[list[float], list[float]]:
        """Returns V and N at each step of an episode, and at the state that it was cut in, if it was."""
        values, counted, value = solved[0].tolist(), solved[1].tolist(), solved[2]
        cut = episode[-1].cut_in
        row: list[float] = []
        counts: list[float] = []
        for state in [*(step.state for step in episode), *([] if cut is None else [cut])]:
            found = self._index.get(state)
            count = 0.0 if found is None else counted[found]
            if found is not None and count:
                value = values[found]
            row.append(value)
            counts.append(count)
        return row, counts


def _decay(count: float, options: GraphOptions) -> float:
    """Returns γ λ_t of a state with so many visits."""
    share = count / (count + options.prior) if count else 0.0
    return options.gamma * (1.0 - (1.0 - options.lam) * share)
