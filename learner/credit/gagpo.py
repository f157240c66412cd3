"""GAGPO: generalised advantage estimation with group averages for a critic (arXiv 2605.13217, section 3).

    R̂_t = r_t + γ R̂_{t+1}                        return of each occurrence, R̂ = 0 after the last step
    V̄(s) = mean of R̂ over all occurrences of s     across the K episodes; repeats within one episode count
    δ_t = r_t + γ V̄(s_{t+1}) - V̄(s_t)             V̄ = 0 after the last step, won or timed out
    Â_t = δ_t + γλ Â_{t+1}                         less the local penalty (parts.py)
    A_t = (Â_t - μ) / (σ + ε)                      over all steps of the group

A singleton state is its own value, V̄ = R̂, so all its credit comes from the steps that follow it. λ = 1 gives
Â = R̂ - V̄, λ = 0 gives Â = δ.
Settings: normalize `batch` takes μ and σ over all groups of the learner step, `none` leaves Â; bootstrap ends a cut
episode in V̄ of the state it was cut in, where the group knows it; broadcast adds that much of GRPO's advantage to A.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from learner.credit.group_operations import (
    backward,
    discounted,
    normalized,
    normalized_together,
    penalized,
    plus,
    rewards,
    state_values,
    states,
)
from learner.credit.grpo import EPISODE, episode_term
from learner.credit.types import Credit, CreditStep, Group, Nested
from services.config.tree import CreditSection

Values = dict[str, tuple[float, int]]
RECURSION = frozenset({"gamma", "lam", "penalty", "penalty_mode", "normalize", "ddof", "bootstrap", "state_key"})
"""The keys that GAGPO and its variants read."""


class Gagpo:
    """The method of the paper, with the readings that docs/algorithms.md gives reasons for."""

    needs_tokens: ClassVar[bool] = False
    needs_critic: ClassVar[bool] = False

    def reads(self, options: CreditSection) -> frozenset[str]:
        """GRPO's keys count only when its term is added."""
        own = RECURSION | {"broadcast"}
        return own | EPISODE if options.broadcast else own

    def group(self, group: Group, options: CreditSection) -> Credit:
        """Credit of one group; see the module's formulas."""
        returns = discounted(group, options)
        values = state_values(group, returns)
        deltas: Nested = []
        for episode, row in zip(group, rewards(group, options), strict=True):
            v = [values[step.state][0] for step in episode] + [value_after(episode[-1], values, options)]
            deltas.append([r + options.gamma * v[t + 1] - v[t] for t, r in enumerate(row)])
        raw = [backward(row, options.gamma * options.lam) for row in deltas]
        return finish(group, options, Credit(returns=returns, values=values, deltas=deltas, raw_advantages=raw,
                                             advantages=raw, states=states(group)))

    def batch(self, credits: list[Credit], options: CreditSection) -> list[Credit]:
        """The one normalisation of `normalize: batch`."""
        return normalized_together(credits, options)


def value_after(last: CreditStep, values: Values, options: CreditSection) -> float:
    """V̄ after an episode's last step."""
    if not options.bootstrap or last.cut_in is None:
        return 0.0
    return values.get(last.cut_in, (0.0, 0))[0]


def finish(group: Group, options: CreditSection, credit: Credit) -> Credit:
    """What follows the recursion: the local penalty off Â, the norm over the group, the broadcast term."""
    raw = penalized(credit.raw_advantages, group, options)
    advantages = normalized(raw, options.ddof) if options.normalize == "group" else raw
    if options.broadcast:
        _, term = episode_term(group, options)
        advantages = plus(advantages, options.broadcast, term)
    return replace(credit, raw_advantages=raw, advantages=advantages)
