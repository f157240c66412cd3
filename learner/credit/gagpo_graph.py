"""GAGPO with values from the group's transition graph instead of mean returns (ours).

    (N(s) + κ) V(s) = Σ over visits of s [r + γ V(s')] + κ m      one linear system per episode i, from the others
    λ_t = 1 - (1 - λ) N(s_t) / (N(s_t) + κ)                       soft: few visits, little bootstrapping
    δ_t = r_t + γ V(s_{t+1}) - V(s_t)                             V = 0 after the last step
    Â_t = δ_t + γ λ_{t+1} Â_{t+1}
    A_t = (Â_t - μ) / (σ + ε)                                     less the local penalty, which comes last

N(s) counts visits by the other episodes, s' is the state after a visit, m the mean start return of the other episodes,
κ = prior. A mean of returns counts only what the visitors of s earned later. The system also counts what other episodes
earned from the states that s leads to. A state that no other episode visited has the value of the step before, with
λ = 1.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    credit_without_contrast,
    discounted,
    has_contrast,
    rewards,
    states,
)
from learner.credit.options import RecursionOptions
from learner.credit.transition_graph import Solution, TransitionGraph
from learner.credit.types import Credit, Group, Nested


class GraphOptions(RecursionOptions):
    """Options of graph values."""

    prior: float = Field(default=2.0, gt=0)
    """κ: weight of the mean start return, as a number of visits by other episodes."""
    leave_out: bool = True
    """Whether an episode's values come only from the other episodes, or from the entire group."""


class GagpoGraph(GagpoFamily):
    """GAGPO with values from the group's transition graph instead of mean returns."""

    Options: ClassVar = GraphOptions
    follows_paths: ClassVar[bool] = True
    """Whether the credit of a step depends on what followed other steps in its next state, so that states which pool
    unlike steps make false paths. Absent means False."""

    def reads(self, options: GraphOptions) -> frozenset[str]:
        """Returns the keys of GAGPO's recursion and those of its values."""
        return recursion_keys(options) | {"prior", "leave_out"}

    def group(self, group: Group, options: GraphOptions) -> Credit:
        """Returns the credit of one group; see the module's formulas."""
        returns, given = discounted(group, options), rewards(group, options)
        if not has_contrast(group, returns):
            return credit_without_contrast(group, options, returns)
        graph = _graph_of(group, options, returns)
        solved = graph.solutions(range(len(group))) if options.leave_out else [graph.values(None)] * len(group)
        gamma = options.gamma
        baselines: Nested = []
        deltas: Nested = []
        raw: Nested = []
        for i, episode in enumerate(group):
            v, visits = graph.along(i, solved[i])
            after = v[1:] if options.bootstrap and episode[-1].cut_in is not None else [*v[1:len(episode)], 0.0]
            deltas.append([r + gamma * next_v - here for r, next_v, here in zip(given[i], after, v, strict=False)])
            raw.append(backward_by_step(deltas[-1], _decays(visits, options)))
            baselines.append(v[:len(episode)])
        return Credit(returns=returns, values=None, deltas=deltas, raw_advantages=raw, states=states(group),
                      advantages=scaled_then_penalized(raw, group, options), baselines=baselines)

    def legend(self, options: GraphOptions) -> dict[str, str]:
        """Returns the legend, with the source of V̄."""
        whose = "the other episodes" if options.leave_out else "the group"
        return family_legend(f"the value that solves V̄ = r + γ V̄(next) over all steps of {whose}", options,
                             elsewhere=", with λ nearer to 1 the rarer the next state is")

    def explain(self, group: Group, credit: Credit, options: GraphOptions, episode: int) -> Explanation:
        """Explains the numbers, with one equation of the system for each step. The penalty is subtracted from A."""
        steps, raw, scale = group[episode], credit.raw_advantages[episode], scales(credit, options, episode)
        if not has_contrast(group, credit.returns):
            return explain_without_contrast(group, credit, options, episode)
        graph = _graph_of(group, options, discounted(group, options))
        solved = graph.values(episode if options.leave_out else None)
        _, visits = graph.along(episode, solved)
        decays = _decays(visits, options)
        lines: Explanation = []
        for t, (step, delta) in enumerate(zip(steps, family_deltas(group, credit, options, episode), strict=True)):
            last = t + 1 == len(steps)
            decay = 0.0 if last else decays[t + 1]
            before = value_at(credit, episode, t - 1) if t else None
            lines.append([_value_line(graph, solved, step.state, before), delta, recursion_line(
                (credit.deltas or [])[episode][t], None if last else raw[t + 1], decay,
                named=f"γλ Â(next), λ = {decay / options.gamma if options.gamma else 0.0:.3g}")])
            if options.normalize != "batch":
                lines[t].append(scaled_line(raw[t], scale[t], penalty=penalty_of(step, options)))
        return lines


def _graph_of(group: Group, options: GraphOptions, returns: Nested) -> TransitionGraph:
    return TransitionGraph(group, rewards(group, options), starts=[row[0] for row in returns], gamma=options.gamma,
                           prior=options.prior)


def _value_line(graph: TransitionGraph, solved: Solution, state: str, before: float | None) -> CalculationLine:
    """Returns the line of V̄ of a state; `before`: V̄ of the step before, None at the first step."""
    outcomes, prior, mean = graph.outcomes(state, solved), graph.prior, solved.mean
    if not outcomes:
        value = mean if before is None else before
        named = "mean first R̂" if before is None else "V̄(before)"
        return CalculationLine(formula=f"V̄ = {named}, as no other episode was in this state = {plain(value)}",
                               result=value)
    total = sum(outcomes)
    return CalculationLine(
        formula=f"V̄ = (Σ (r + γ V̄(next)) + κ · mean first R̂) / (N + κ), over N visits = "
                f"({plain(total)} + {prior:g} · {plain(mean)}) / ({len(outcomes)} + {prior:g})",
        result=(total + prior * mean) / (len(outcomes) + prior))


def _decays(visits: Sequence[float], options: GraphOptions) -> list[float]:
    """Returns γ λ_t of states with so many visits."""
    most, softened, prior = options.gamma, options.gamma * (1.0 - options.lam), options.prior
    return [most - softened * count / (count + prior) for count in visits]
