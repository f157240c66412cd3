"""G²PO: compares the states that steps lead to, among the steps of a state and among all steps (arXiv 2606.22995).

    V(s) = mean of γ^(T_i - t) R_i                 over all visits (i, t) of s, t from 0; R_i the episode's reward
    U_t = V(s_{t+1}), after the last step R_i      the state that the step leads to
    A_N = (X_t - mean) / (std + ε), X_t = U_t - p [step invalid]     over all steps in the same state; 0 for a lone one
    A_G = (U_t - V(s_t) - mean) / (std + ε)        over all steps of the group; 0 without contrast (group_operations.py)
    A_t = A_E + ω (A_N + A_G)                      A_E: GRPO's advantage; mode mean_norm divides nothing

T_i is the number of steps, so the last step counts γ. We could not read the paper's own text: these formulas are those
of the authors' code (Nala-YN/G2PO), in which a won episode ends in the value 10, its reward, and a lost one in 0.
"""

from __future__ import annotations

from math import fsum
from typing import ClassVar

import numpy as np

from learner.credit.estimator import WithinGroup
from learner.credit.explanation import ADVANTAGE, DELTA, RAW, VALUE, CalculationLine, Explanation, plain, signed
from learner.credit.gigpo import GigpoOptions
from learner.credit.group_operations import (
    center,
    discounted,
    has_contrast,
    penalized,
    pool_centers,
    rewards,
    state_numbers,
    state_values,
    states,
)
from learner.credit.grpo import divided, episode_keys, episode_term
from learner.credit.types import Credit, Group, Nested, flat, nested
from services.amounts import number_of


class G2po(WithinGroup):
    """Credit by nodes and edges of the group's state graph, added to the episode's."""

    Options: ClassVar = GigpoOptions
    follows_paths: ClassVar[bool] = True

    def reads(self, options: GigpoOptions) -> frozenset[str]:
        """Returns GRPO's keys and those of the two terms; ddof counts only where a spread divides."""
        return episode_keys(options) | {"gamma", "omega", "state_key"}

    def group(self, group: Group, options: GigpoOptions) -> Credit:
        """Returns the credit of one group. raw_advantages have no term divided by a spread."""
        values, own, after = _values(group, options)
        gains = flat(after) - flat(own)
        x = flat(penalized(after, group, options))
        means, spreads = pool_centers(x, state_numbers(group), options.ddof)
        gain, spread = center(gains.tolist(), options.ddof)
        if options.mode == "mean_norm":
            spreads, spread = np.ones_like(spreads), 1.0
        returns = discounted(group, options)
        # Without contrast the gains along an episode are the discount's alone.
        nodes, edges = x - means, gains - gain if has_contrast(group, returns) else np.zeros_like(gains)
        raw_e, advantages_e = episode_term(group, options)
        return Credit(returns=returns, values=values, deltas=nested(gains, group),
                      states=states(group),
                      raw_advantages=nested(flat(raw_e) + options.omega * (nodes + edges), group),
                      advantages=nested(flat(advantages_e) + options.omega * (nodes / spreads + edges / spread), group))

    def legend(self, options: GigpoOptions) -> dict[str, str]:
        """Returns the legend."""
        return {VALUE: "the mean of γ^(steps left) R over all steps of the group in that state",
                DELTA: "V̄ of the state that the step led to, less V̄ of its own",
                RAW: "GRPO's S − mean, plus ω times what the step led to, against its state's steps and as a gain",
                ADVANTAGE: f"Â{divided(options)}"}

    def explain(self, group: Group, credit: Credit, options: GigpoOptions, episode: int) -> Explanation:  # noqa: ARG002
        """Explains V̄ and δ. Â and A have no lines, because their terms need all steps of the group."""
        values, _, after = _values(group, options)
        lines: Explanation = []
        for step, then in zip(group[episode], after[episode], strict=True):
            value, count = values[step.state]
            lines.append([
                CalculationLine(formula="V̄ = mean of γ^(steps left) R over the "
                                        f"{number_of(count, 'step')} in this state", result=value),
                CalculationLine(formula=f"δ = V̄(next) − V̄ = {plain(then)} − ({signed(value)})", result=then - value)])
        return lines


def _values(group: Group, options: GigpoOptions) -> tuple[dict[str, tuple[float, int]], Nested, Nested]:
    """Returns state -> (V, visits); then V and U of each step."""
    totals = [fsum(row) for row in rewards(group, options)]
    powers = [options.gamma**left for left in range(max(map(len, group)), 0, -1)]
    ahead = [[power * total for power in powers[-len(episode):]] for episode, total in zip(group, totals, strict=True)]
    values = state_values(group, ahead)
    means = {state: mean for state, (mean, _) in values.items()}
    own = [[means[step.state] for step in episode] for episode in group]
    return values, own, [[*row[1:], total] for row, total in zip(own, totals, strict=True)]
