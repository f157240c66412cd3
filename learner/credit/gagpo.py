"""GAGPO: generalised advantage estimation with group averages for a critic (arXiv 2605.13217, section 3).

    R̂_t = r_t + γ R̂_{t+1}                        return of each occurrence, R̂ = 0 after the last step
    V̄(s) = mean of R̂ over all occurrences of s     across the K episodes; repeats within one episode count
    δ_t = r_t + γ V̄(s_{t+1}) - V̄(s_t)             V̄ = 0 after the last step, won or timed out
    Â_t = δ_t + γλ Â_{t+1}
    A_t = (Â_t - μ) / (σ + ε)                      over all steps of the group

A singleton state is its own value, V̄ = R̂, so all its credit comes from the steps that follow it. λ = 1 gives
Â = R̂ - V̄, λ = 0 gives Â = δ.
"""

from __future__ import annotations

from math import fsum

import numpy as np

from learner.credit.types import Array, Credit, CreditStep, Group, Nested, flat, nested
from services.config import CreditSection

EPSILON = 1e-6


class Gagpo:
    """The method of the paper, with the readings that docs/algorithms.md gives reasons for."""

    needs_tokens = False
    needs_critic = False

    def group(self, group: Group, options: CreditSection) -> Credit:
        """Credit of one group; see the module's formulas."""
        rewards = [[immediate(step, options) for step in episode] for episode in group]
        returns = [backward(row, options.gamma) for row in rewards]
        values = state_values(group, returns)
        deltas: Nested = []
        for episode, row in zip(group, rewards, strict=True):
            v = [values[step.state][0] for step in episode] + [0.0]
            deltas.append([r + options.gamma * v[t + 1] - v[t] for t, r in enumerate(row)])
        raw = [backward(row, options.gamma * options.lam) for row in deltas]
        if options.penalty_mode == "local":
            raw = [[a - options.penalty * step.invalid for a, step in zip(row, episode, strict=True)]
                   for row, episode in zip(raw, group, strict=True)]
        advantages = nested(normalize(flat(raw), options), group)
        states = [[step.state for step in episode] for episode in group]
        return Credit(returns=returns, values=values, deltas=deltas, raw_advantages=raw, advantages=advantages,
                      states=states)

    def batch(self, credits: list[Credit], options: CreditSection) -> list[Credit]:  # noqa: ARG002 the hook's form
        """Groups are already on one scale: nothing to do."""
        return credits


def immediate(step: CreditStep, options: CreditSection) -> float:
    """r_t; penalty mode `reward` takes the penalty from it, so that it spreads to earlier steps and into V̄."""
    return step.reward - options.penalty * step.invalid if options.penalty_mode == "reward" else step.reward


def backward(row: list[float], decay: float) -> list[float]:
    """x_t + decay x_{t+1} + decay² x_{t+2} + ...; [T] to [T]."""
    out, total = [0.0] * len(row), 0.0
    for t in range(len(row) - 1, -1, -1):
        total = out[t] = row[t] + decay * total
    return out


def state_values(group: Group, returns: Nested) -> dict[str, tuple[float, int]]:
    """State -> (mean return, occurrences). fsum: the value does not depend on the order of the episodes."""
    seen: dict[str, list[float]] = {}
    for episode, row in zip(group, returns, strict=True):
        for step, value in zip(episode, row, strict=True):
            seen.setdefault(step.state, []).append(value)
    return {state: (fsum(values) / len(values), len(values)) for state, values in seen.items()}


def normalize(raw: Array, options: CreditSection) -> Array:
    """[N] to zero mean and unit spread over the group's steps; a single step is left as it is, a constant gives 0."""
    if options.normalize == "none" or len(raw) == 1:
        return raw
    if np.ptp(raw) == 0:  # the mean of equal numbers may differ from them by a rounding, which ε would magnify
        return np.zeros_like(raw)
    return (raw - raw.mean()) / (raw.std(ddof=options.ddof) + EPSILON)
