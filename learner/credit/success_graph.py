"""GRAFT, CRBC and GraphHCA: credit by the value of success in the states that steps lead to, on the group's graph.

    V(s) = γ · mean of V(s_{t+1}) over all visits of s     V = 1 after a won episode, 0 after any other, also a cut one
    δ_t = γ V(s_{t+1}) - V(s_t)

    GRAFT     A_t = (δ_t - μ) / (σ + ε) - p [step invalid]                        arXiv 2609.28963, equations 8 and 11
    CRBC      A_t = w A_E + ω [two actions at s_t] (Q(s_t, a_t) - V(s_t)) / max(σ_Q, floor)          arXiv 2609.35082
              Q(s, a) = γ · mean of V(s_{t+1}) over the visits of s that took a
    GraphHCA  A_t = w A_E + ω (ℓ_t - μ) / (σ + ε)                                                    arXiv 2609.35084
              ℓ_t = Ψ(s_{t+1}) - Ψ(s_t), Ψ = log max(V, 0.01)

μ and σ are over all visits of s_t, repeats within one episode included; a step that is alone in its state, and equal
numbers, get 0. σ_Q² is the mean of (Q - V)² over the visits. A_E is GRPO's advantage (grpo.py), w = broadcast.
V depends only on whether an episode was won: whether its reward is positive. So penalties do not change V. GRAFT
subtracts a local one from A, and ignores one in the reward; in CRBC and GraphHCA both change A_E alone. V is solved
exactly, by the system of transition_graph.py without a prior and with every episode. docs/algorithms.md says what the
papers leave open.
"""

from __future__ import annotations

from math import fsum
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from learner.credit.estimator import WithinGroup
from learner.credit.explanation import (
    ADVANTAGE,
    DELTA,
    RAW,
    SCALED,
    VALUE,
    CalculationLine,
    Explanation,
    less,
    penalty_of,
    plain,
    scaled_line,
    scales,
    signed,
    value_at,
)
from learner.credit.gagpo import scale_keys, scaled_then_penalized
from learner.credit.group_operations import (
    Integers,
    discounted,
    normalized_together,
    pool_centers,
    state_numbers,
    states,
)
from learner.credit.grpo import broadcast_keys, divided, episode_term
from learner.credit.options import BroadcastOptions, ScaleOptions
from learner.credit.transition_graph import TransitionGraph
from learner.credit.types import ZERO, Array, Credit, Group, flat, nested
from services.amounts import number_of

LEAST_VALUE = 0.01
"""GraphHCA takes the logarithm of this in place of smaller values."""


class SuccessGraph(NamedTuple):
    """The values on a group's graph, [N] over its steps, episode by episode."""

    own: Array
    """V(s_t)."""
    after: Array
    """V(s_{t+1}), after the last step 1 or 0."""
    states: Integers
    """A number for the state of each step."""

    @classmethod
    def solve(cls, group: Group, gamma: float) -> SuccessGraph:
        """Returns the graph of a group, with the values that solve its system."""
        ends = _ends(group)
        given = [[0.0] * (len(episode) - 1) + [gamma * end] for episode, end in zip(group, ends, strict=True)]
        graph = TransitionGraph(group, given, starts=[0.0] * len(group), gamma=gamma, prior=0.0)
        return cls.of_values(group, graph.everywhere(graph.values(None)), ends)

    @classmethod
    def of_credit(cls, group: Group, credit: Credit) -> SuccessGraph:
        """Returns the graph with the values of a credit."""
        rows = [[value_at(credit, i, t) for t in range(len(episode))] for i, episode in enumerate(group)]
        return cls.of_values(group, flat(rows), _ends(group))

    @classmethod
    def of_values(cls, group: Group, own: Array, ends: list[float]) -> SuccessGraph:
        """Returns the graph with these values V(s_t)."""
        last = np.cumsum([len(episode) for episode in group]) - 1
        after = np.append(own[1:], 0.0)
        after[last] = ends
        return cls(own=own, after=after, states=state_numbers(group))

    def deltas(self, gamma: float) -> Array:
        """Returns δ_t."""
        return gamma * self.after - self.own

    def counted(self, group: Group) -> dict[str, tuple[float, int]]:
        """Returns state -> (V, visits)."""
        names = [step.state for episode in group for step in episode]
        _, first, counts = np.unique(self.states, return_index=True, return_counts=True)
        return {names[at]: (value, count)
                for at, value, count in zip(first.tolist(), self.own[first].tolist(), counts.tolist(), strict=True)}


def _ends(group: Group) -> list[float]:
    """Returns V after the last step of each episode: 1 if it was won, else 0."""
    return [float(fsum([step.reward for step in episode]) > 0) for episode in group]


def _value_lines(group: Group, graph: SuccessGraph, gamma: float, episode: int) -> Explanation:
    """Explains V̄ and δ of each step of an episode."""
    means, _ = pool_centers(graph.after, graph.states, ddof=0)
    counts = np.bincount(graph.states)[graph.states]
    rows = [nested(numbers, group)[episode] for numbers in (graph.own, graph.after, means, counts.astype(float))]
    lines: Explanation = []
    for t, (own, after, mean, count) in enumerate(zip(*rows, strict=True)):
        last = t + 1 == len(rows[0])
        end = f"1 − V̄, as the episode was won here = {gamma:g}" if after else "0 − V̄, as the episode ended here = 0"
        numbers = f"{end}{less(own)}" if last else f"V̄(next) − V̄ = {gamma:g} · {plain(after)}{less(own)}"
        lines.append([
            CalculationLine(formula=f"V̄ = γ · mean V̄(next) of the {number_of(int(count), 'step')} in this state = "
                                    f"{gamma:g} · {plain(mean)}", result=gamma * mean),
            CalculationLine(formula=f"δ = γ · {numbers}" if last else f"δ = γ {numbers}",
                            result=gamma * after - own)])
    return lines


class GraftOptions(ScaleOptions):
    """Options of GRAFT."""

    gamma: float = Field(default=0.99, ge=0, le=1)
    """Discount γ per turn."""
    normalize: Literal["group", "state", "batch", "none"] = "state"
    """Whether advantages are normalised over each group, over the turns of a group in each state, over all groups of a
    learner step (batch), or not at all."""


class Graft(WithinGroup):
    """One-step differences of values on the group's graph, without a term of the episode. The paper's Graph GAE is left
    out, because on an exact solution it is 0 (docs/algorithms.md)."""

    Options: ClassVar = GraftOptions
    follows_paths: ClassVar[bool] = True

    def reads(self, options: GraftOptions) -> frozenset[str]:
        """Returns the keys of the values and of their scale. A penalty in the reward does not change who won."""
        penalty = {"penalty"} if options.penalty_mode == "local" else set[str]()
        return scale_keys(options) | {"gamma", "penalty_mode", "state_key"} | penalty

    def group(self, group: Group, options: GraftOptions) -> Credit:
        """Returns the credit of one group; see the module's formulas."""
        graph = SuccessGraph.solve(group, options.gamma)
        deltas = nested(graph.deltas(options.gamma), group)
        return Credit(returns=discounted(group, options), values=graph.counted(group), deltas=deltas,
                      raw_advantages=deltas, advantages=scaled_then_penalized(deltas, group, options),
                      states=states(group))

    def batch(self, credits: list[Credit], options: GraftOptions) -> list[Credit]:
        """Normalises all groups together if `normalize` is `batch`."""
        return normalized_together(credits, options)

    def legend(self, options: GraftOptions) -> dict[str, str]:
        """Returns the legend."""
        return {VALUE: _VALUE, DELTA: _DELTA, RAW: "δ", ADVANTAGE: SCALED[options.normalize]}

    def explain(self, group: Group, credit: Credit, options: GraftOptions, episode: int) -> Explanation:
        """Explains the numbers. The penalty is subtracted from A."""
        lines = _value_lines(group, SuccessGraph.of_credit(group, credit), options.gamma, episode)
        scale, raw = scales(credit, options, episode), credit.raw_advantages[episode]
        for t, (step, own) in enumerate(zip(group[episode], lines, strict=True)):
            own.append(CalculationLine(formula=f"Â = δ = {plain(own[-1].result)}", result=own[-1].result))
            if options.normalize != "batch":
                own.append(scaled_line(raw[t], scale[t], penalty=penalty_of(step, options)))
        return lines


_VALUE = "what success is worth from that state: it solves V̄ = γ · mean V̄(next) over the group's steps, 1 after a win"
_DELTA = "what the action changed, γ V̄(next) − V̄: below 0 it led to a state worth less"


class StepTermOptions(BroadcastOptions):
    """Options of GRPO's advantage with a step term on the group's graph."""

    statistics: Literal["rows", "trajectories"] = "trajectories"
    """Whether means of scores are over the turns of a group (rows) or its episodes (trajectories)."""
    broadcast: float = Field(default=1.0, ge=0)
    """Weight of GRPO's episode-level advantage, which is added to every turn."""
    omega: float = Field(default=1.0, ge=0)
    """Weight of the step-level term."""


class CrbcOptions(StepTermOptions):
    """Options of CRBC."""

    gamma: float = Field(default=0.98, ge=0, le=1)
    """Discount γ per turn."""
    omega: float = Field(default=5.0, ge=0)
    """Weight of the step-level term."""
    spread_floor: float = Field(default=0.1, ge=0)
    """Least standard deviation that divides Q - V."""


class _StepTerm(WithinGroup):
    """GRPO's advantage plus ω times a term of each step. `mode` governs both terms."""

    Options: ClassVar = StepTermOptions
    follows_paths: ClassVar[bool] = True
    term: ClassVar[str]
    """Formula of the step's term before it is divided."""

    def terms(self, group: Group, graph: SuccessGraph, options: Any) -> tuple[Array, Array]:
        """Returns the step's term without and with division by a spread, [N]."""
        raise NotImplementedError

    def reads(self, options: Any) -> frozenset[str]:
        """Returns GRPO's keys if its term is added, and those of the step's term."""
        return broadcast_keys(options) | {"gamma", "omega", "mode", "state_key"}

    def group(self, group: Group, options: StepTermOptions) -> Credit:
        """Returns the credit of one group. raw_advantages have no term divided by a spread."""
        graph = SuccessGraph.solve(group, options.gamma)
        plain_term, divided_term = self.terms(group, graph, options)
        raw, advantages = episode_term(group, options)
        return Credit(
            returns=discounted(group, options), values=graph.counted(group), states=states(group),
            deltas=nested(graph.deltas(options.gamma), group),
            raw_advantages=nested(options.broadcast * flat(raw) + options.omega * plain_term, group),
            advantages=nested(options.broadcast * flat(advantages) + options.omega * divided_term, group))

    def legend(self, options: StepTermOptions) -> dict[str, str]:
        """Returns the legend."""
        weight = "GRPO's S − mean" if options.broadcast == 1 else f"{options.broadcast:g} times GRPO's S − mean"
        return {VALUE: _VALUE, DELTA: _DELTA, RAW: f"{weight}, plus ω ({self.term})", ADVANTAGE: f"Â{divided(options)}"}

    def explain(self, group: Group, credit: Credit, options: StepTermOptions, episode: int) -> Explanation:
        """Explains the numbers: undivided terms in Â, divided ones in A."""
        graph = SuccessGraph.of_credit(group, credit)
        lines, both = _value_lines(group, graph, options.gamma, episode), self.terms(group, graph, options)
        pairs = [("Â", f"w (S − mean S) + ω ({self.term})"), ("A", "w A_E + ω A_S")]
        for (symbol, named), term, own in zip(pairs, episode_term(group, options), both, strict=True):
            for line, e, s in zip(lines, term[episode], nested(own, group)[episode], strict=True):
                line.append(CalculationLine(
                    formula=f"{symbol} = {named} = {options.broadcast:g} · ({signed(e)}) + {options.omega:g} · "
                            f"({signed(s)})", result=options.broadcast * e + options.omega * s))
        return lines


class Crbc(_StepTerm):
    """GRPO's advantage plus what the action is worth in its state, by all steps of the group that took it there. `mode`
    governs both terms, `ddof` and `statistics` the episode's."""

    Options: ClassVar = CrbcOptions
    compares_actions: ClassVar[bool] = True
    term: ClassVar[str] = "Q − V̄"

    def reads(self, options: CrbcOptions) -> frozenset[str]:
        """Returns GRPO's keys if its term is added, and those of the step's term."""
        floor = {"spread_floor"} if options.mode == "mean_std_norm" else set[str]()
        return super().reads(options) | floor

    def terms(self, group: Group, graph: SuccessGraph, options: CrbcOptions) -> tuple[Array, Array]:
        """Returns Q - V, and divided by the spread of its state. Both are 0 in a state with one action."""
        pair = _action_numbers(group, graph.states)
        q, _ = pool_centers(options.gamma * graph.after, pair, ddof=0)
        first = np.unique(pair, return_index=True)[1]  # one step of each action of each state
        several = (np.bincount(graph.states[first]) > 1)[graph.states]
        term = np.where(several, q - graph.own, 0.0)
        if options.mode == "mean_norm":
            return term, term
        squares, _ = pool_centers(term**2, graph.states, ddof=0)
        spread = np.maximum(np.sqrt(squares), options.spread_floor)
        return term, term / np.where(spread > ZERO, spread, 1.0)


def _action_numbers(group: Group, states: Integers) -> Integers:
    """Returns a number for the state and action of each step, [N]."""
    number: dict[str | None, int] = {}
    actions = np.array([number.setdefault(step.action, len(number)) for episode in group for step in episode])
    return states * len(number) + actions


class GraphHca(_StepTerm):
    """GRPO's advantage plus the change of the logarithm of a state's value, on the scale of its state. `mode` governs
    both terms, `statistics` the episode's."""

    Options: ClassVar = StepTermOptions
    term: ClassVar[str] = "ℓ − mean ℓ"

    def reads(self, options: StepTermOptions) -> frozenset[str]:
        """Returns GRPO's keys if its term is added, and those of the step's term."""
        spread = {"ddof"} if options.mode == "mean_std_norm" else set[str]()
        return super().reads(options) | spread

    def terms(self, group: Group, graph: SuccessGraph, options: StepTermOptions) -> tuple[Array, Array]:  # noqa: ARG002
        """Returns ℓ - μ, and divided by the spread of its state."""
        own, after = (np.log(np.maximum(numbers, LEAST_VALUE)) for numbers in (graph.own, graph.after))
        change = after - own
        means, spreads = pool_centers(change, graph.states, options.ddof)
        term = change - means
        return term, term if options.mode == "mean_norm" else term / spreads
