"""GAGPO with values that leave out the episode itself and use the value of the step before (ours; docs/algorithms.md).

    M_i(s), n_i(s)   mean and number of R̂ over the steps at s of all episodes but i
    V_i(0) = mean of R̂_1 over all episodes but i                   steps count from 1
    V_i(t) = (n_i(s_t) M_i(s_t) + κ V_i(t-1)) / (n_i(s_t) + κ)     κ = prior; 0 after the last step
    δ_t = r_t + γ V_i(t+1) - V_i(t)
    Â_t = δ_t + γ λ_{t+1} Â_{t+1}                                  λ_t = λ if n_i(s_t) > 0, else 1
    A_t = (Â_t - μ) / (σ + ε)                                      less the local penalty, which comes last here;
                                                                   with `broadcast`, plus that much of GRPO's A

V_i(t) is a function of the others' returns and of the states that episode i has passed, so the rewards of episode i
from t on cannot change its own baseline. Therefore no step gets negative credit for the success of the next one, as the
step before a shared state does in plain GAGPO. A state that no other episode has met is compared with the last state
that another has met. Its V is carried over and not measured, so λ = 1 there: Â does not rely on it, and the entire
outcome of a sequence of such states reaches the step that led to the first of them.
A group without contrast (group_operations.py) has V = R̂ and Â = 0. By the formulas above only the lag of V behind the
discount would be left, and normalising would scale it up.
The penalty comes after normalising: if all episodes of a group fail, invalid steps get exactly -penalty, others 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import fsum
from typing import ClassVar

from pydantic import Field

from learner.credit.explanation import (
    CalculationLine,
    Explanation,
    explain_without_contrast,
    family_deltas,
    family_legend,
    penalty_of,
    plain,
    recursion_line,
    scaled_line,
    scales,
    value_at,
)
from learner.credit.gagpo import GagpoFamily, recursion_keys, scaled_then_penalized
from learner.credit.group_operations import (
    backward_by_step,
    by_state,
    credit_without_contrast,
    discounted,
    has_contrast,
    rewards,
    states,
)
from learner.credit.grpo import broadcast_keys, episode_term, with_broadcast
from learner.credit.options import BroadcastOptions, RecursionOptions
from learner.credit.types import Credit, CreditStep, Group, Nested


class LeaveOneOutOptions(RecursionOptions, BroadcastOptions):
    """Options of leave-one-out values."""

    prior: float = Field(default=2.0, ge=0)
    """κ: weight of the previous turn's value, as a number of turns of other episodes."""


class GagpoLeaveOneOut(GagpoFamily):
    """GAGPO with values that leave out the episode itself and use the value of the step before."""

    Options: ClassVar = LeaveOneOutOptions

    def reads(self, options: LeaveOneOutOptions) -> frozenset[str]:
        """Returns the keys of GAGPO's recursion, the prior of the values, and GRPO's keys if its term is added."""
        return recursion_keys(options) | broadcast_keys(options) | {"prior"}

    def group(self, group: Group, options: LeaveOneOutOptions) -> Credit:
        """Returns the credit of one group; see the module's formulas."""
        returns = discounted(group, options)
        if not has_contrast(group, returns):
            even = credit_without_contrast(group, options, returns)
            return replace(even, advantages=with_broadcast(even.advantages, group, options))
        values, numbers = others_values(group, returns, options.prior)
        deltas: Nested = []
        raw: Nested = []
        for row, episode, v, counts in zip(rewards(group, options), group, values, numbers, strict=True):
            after = v[1:] if options.bootstrap and episode[-1].cut_in is not None else [*v[1:len(row)], 0.0]
            deltas.append([r + options.gamma * after[t] - v[t] for t, r in enumerate(row)])
            raw.append(backward_by_step(deltas[-1], [options.gamma * lambda_at(count, options) for count in counts]))
        return Credit(returns=returns, values=None, deltas=deltas, raw_advantages=raw,
                      advantages=with_broadcast(scaled_then_penalized(raw, group, options), group, options),
                      states=states(group),
                      baselines=[v[:len(row)] for v, row in zip(values, returns, strict=True)])

    def legend(self, options: LeaveOneOutOptions) -> dict[str, str]:
        """Returns the legend. V̄ leaves out the episode itself."""
        return family_legend("the mean R̂ of the other episodes' steps in that state, drawn towards V̄ of the step "
                             "before", options, elsewhere=", by γ where no other episode was in the next state")

    def explain(self, group: Group, credit: Credit, options: LeaveOneOutOptions, episode: int) -> Explanation:
        """Explains the numbers. The penalty is subtracted from A; λ = 1 at a state that no other episode was in."""
        steps, raw, scale = group[episode], credit.raw_advantages[episode], scales(credit, options, episode)
        terms = None
        if options.broadcast:
            terms = [(options.broadcast, x) for x in episode_term(group, options)[1][episode]]
        others = [row for i, row in enumerate(credit.returns) if i != episode]
        elsewhere = by_state([row for i, row in enumerate(group) if i != episode], others)
        if not has_contrast(group, credit.returns):
            return explain_without_contrast(group, credit, options, episode, terms)
        lines: Explanation = []
        for t, (step, delta) in enumerate(zip(steps, family_deltas(group, credit, options, episode), strict=True)):
            last = t + 1 == len(steps)
            before = value_at(credit, episode, t - 1) if t else _mean([row[0] for row in others])
            count = 1 if last else len(elsewhere.get(steps[t + 1].state, []))
            recursion = recursion_line(
                (credit.deltas or [])[episode][t], None if last else raw[t + 1],
                options.gamma * lambda_at(count, options),
                named="γλ Â(next)" if count else "γ Â(next, a state that no other episode was in)")
            lines.append([_value_line(elsewhere.get(step.state, []), before, options.prior, first=not t), delta,
                          recursion])
            if options.normalize != "batch":
                lines[t].append(scaled_line(raw[t], scale[t], penalty=penalty_of(step, options),
                                            term=None if terms is None else terms[t]))
        return lines


def lambda_at(count: int, options: LeaveOneOutOptions) -> float:
    """Returns λ_t of a state with `count` steps of other episodes."""
    return options.lam if count else 1.0


def _value_line(returns: Sequence[float], before: float, prior: float, *, first: bool) -> CalculationLine:
    """Explains V of a step, from the returns of the other episodes in its state and V of the step before."""
    named = "mean first R̂ of the others" if first else "V̄(before)"
    count = len(returns)
    if not count:
        return CalculationLine(formula=f"V̄ = {named}, as no other episode was in this state = {plain(before)}",
                               result=before)
    mean = fsum(returns) / count
    return CalculationLine(
        formula=f"V̄ = (n · mean R̂ + κ · {named}) / (n + κ), over the other episodes' n steps in this state = "
                f"({count} · {plain(mean)} + {prior:g} · {plain(before)}) / ({count} + {prior:g})",
        result=(fsum(returns) + prior * before) / (count + prior))


def _mean(xs: Sequence[float]) -> float:
    return fsum(xs) / len(xs) if xs else 0.0


def others_values(group: Group, returns: Nested, prior: float) -> tuple[Nested, list[list[int]]]:
    """Returns V_i(t) for each step t of each episode i, and for the state in which a budget cut it; then n_i(s_t), the
    number of steps of other episodes in each of these states."""
    everywhere = _sums(group, returns)
    starts = [row[0] for row in returns]
    rows: Nested = []
    numbers: list[list[int]] = []
    for i, (episode, own_returns) in enumerate(zip(group, returns, strict=True)):
        own = _sums([episode], [own_returns])
        before = starts[:i] + starts[i + 1:]
        value = _mean(before)
        row: list[float] = []
        counts: list[int] = []
        for state in _passed(episode):
            total, count = everywhere.get(state, (0.0, 0))
            mine, often = own.get(state, (0.0, 0))
            others = count - often
            if others:
                value = (total - mine + prior * value) / (others + prior)
            row.append(value)
            counts.append(others)
        rows.append(row)
        numbers.append(counts)
    return rows, numbers


def _sums(group: Group, returns: Nested) -> dict[str, tuple[float, int]]:
    """Returns state -> (sum of R̂, occurrences). fsum makes the values independent of the order of the episodes."""
    return {state: (fsum(xs), len(xs)) for state, xs in by_state(group, returns).items()}


def _passed(episode: Sequence[CreditStep]) -> list[str]:
    """Returns the states of an episode in order, last the one in which a budget cut it, if one did."""
    cut = episode[-1].cut_in
    return [step.state for step in episode] + ([] if cut is None else [cut])
