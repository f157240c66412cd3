"""GAGPO in which a state that only one episode met takes its value from its successor (ours; docs/algorithms.md).

    V(s) = mean of R̂ over all occurrences of s                      if two episodes or more met s
    V_i(t) = r_t + γ V_i(t+1)                                       if only episode i met it; so δ_t = 0 there
    δ, Â as in GAGPO; A_t = (Â_t - μ) / (σ + ε)                     less the local penalty, which comes last here

A step in a state that no other episode met has nothing to compare with. It gets no credit of its own but a share of its
successor's, Â_t = γλ Â_{t+1}, with the same sign. After the last shared state of an episode all credit is 0.
With `bootstrap`, V after the last step of an episode that a budget cut off is the mean of R̂ in the state that it was
cut in, if another episode has been there; otherwise 0.
"""

from __future__ import annotations

from typing import ClassVar

from learner.credit.explanation import (
    CalculationLine,
    Explanation,
    family_deltas,
    family_legend,
    mean_line,
    penalty_of,
    plain,
    recursion_line,
    scaled_line,
    scales,
    value_at,
)
from learner.credit.gagpo import GagpoFamily, recursion_keys, scaled_then_penalized
from learner.credit.group_operations import (
    backward,
    by_state,
    discounted,
    rewards,
    state_values,
    states,
)
from learner.credit.options import RecursionOptions
from learner.credit.types import Credit, Group, Nested


class GagpoBootstrapped(GagpoFamily):
    """GAGPO in which a state that only one episode met takes its value from its successor."""

    Options: ClassVar = RecursionOptions

    def reads(self, options: RecursionOptions) -> frozenset[str]:
        """Returns the keys of GAGPO's recursion."""
        return recursion_keys(options)

    def group(self, group: Group, options: RecursionOptions) -> Credit:
        """Returns the credit of one group; see the module's formulas."""
        returns, r = discounted(group, options), rewards(group, options)
        means, shared = state_values(group, returns), shared_states(group)
        baselines: Nested = []
        deltas: Nested = []
        for episode, row in zip(group, r, strict=True):
            cut = episode[-1].cut_in if options.bootstrap else None
            elsewhere = cut in shared or (cut in means and all(step.state != cut for step in episode))
            after = means[cut][0] if cut is not None and elsewhere else 0.0
            v, delta = [0.0] * len(row), [0.0] * len(row)
            for t in range(len(row) - 1, -1, -1):
                target, state = row[t] + options.gamma * after, episode[t].state
                v[t] = means[state][0] if state in shared else target
                delta[t], after = target - v[t], v[t]
            baselines.append(v)
            deltas.append(delta)
        raw = [backward(row, options.gamma * options.lam) for row in deltas]
        return Credit(returns=returns, values=means, deltas=deltas, raw_advantages=raw, baselines=baselines,
                      advantages=scaled_then_penalized(raw, group, options), states=states(group))

    def legend(self, options: RecursionOptions) -> dict[str, str]:
        """Returns the legend. V̄ of a state that only one episode met comes from its successor."""
        return family_legend("the mean R̂ of the group's steps in that state; where no other episode was in it, "
                             "r + γ V̄ of the state that followed", options)

    def explain(self, group: Group, credit: Credit, options: RecursionOptions, episode: int) -> Explanation:
        """Explains the numbers. The penalty is subtracted from A."""
        steps, raw, shared = group[episode], credit.raw_advantages[episode], shared_states(group)
        returns, scale, r = by_state(group, credit.returns), scales(credit, options, episode), rewards(group, options)
        lines: Explanation = []
        for t, (step, delta) in enumerate(zip(steps, family_deltas(group, credit, options, episode), strict=True)):
            last = t + 1 == len(steps)
            value = mean_line(returns[step.state])
            if step.state not in shared:
                then = 0.0 if last else value_at(credit, episode, t + 1)
                value = CalculationLine(
                    formula=f"V̄ = r + γ V̄(next), as no other episode was in this state = {r[episode][t]:g} + "
                            f"{options.gamma:g} · {plain(then)}", result=r[episode][t] + options.gamma * then)
            recursion = recursion_line((credit.deltas or [])[episode][t], None if last else raw[t + 1],
                                       options.gamma * options.lam)
            lines.append([value, delta, recursion])
            if options.normalize != "batch":
                lines[t].append(scaled_line(raw[t], scale[t], penalty=penalty_of(step, options)))
        return lines


def shared_states(group: Group) -> set[str]:
    """Returns the states that at least two episodes met."""
    seen: set[str] = set()
    shared: set[str] = set()
    for episode in group:
        met = {step.state for step in episode}
        shared |= seen & met
        seen |= met
    return shared
