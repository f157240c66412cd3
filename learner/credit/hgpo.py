"""HGPO: each step against the steps with the same recent history, over several lengths of history (arXiv 2602.22817).

    Q_t = R̂_t - p [step invalid]                   as in GiGPO
    G_k(t)                                         the group's steps whose last k states equal those of step t
    A_k = (Q_t - mean) / (std + ε)                 over G_k(t), std with divisor n; mode mean_norm does not divide
    A_t = Σ_k w_k A_k / Σ_k w_k,  w_k = (k + 1)^α  over the k = 1 ... history + 1 with A_k ≠ 0; 0 if there is none

A group of one step has no A_k, and early in an episode only the k that fit into it count. We could not read the paper's
own text: these formulas are those of the authors' code (verl-agent, recipe/hgpo), with its defaults history 2, α 1 and
no episode-level term. Its code adds ε to the sum of weights, which is left out here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from learner.credit.estimator import WithinGroup
from learner.credit.explanation import ADVANTAGE, RAW, VALUE, CalculationLine, Explanation, plain, signed
from learner.credit.group_operations import (
    discounted,
    penalized,
    pool_centers,
    state_numbers,
    state_values,
    states,
)
from learner.credit.options import CreditOptions
from learner.credit.types import ZERO, Array, Credit, Group, Nested, flat, nested
from services.amounts import number_of

_LARGEST = 2**62
"""Bound of the numbers of histories, half of the largest int64. Before they exceed it, histories are renumbered."""


class HgpoOptions(CreditOptions):
    """Options of HGPO."""

    mode: Literal["mean_std_norm", "mean_norm"] = "mean_std_norm"
    """Whether deviations from the mean are divided by the standard deviation."""
    history: int = Field(default=2, ge=0)
    """Number of earlier states in a step's longest history, in addition to its own."""
    alpha: float = Field(default=1.0, ge=0, le=100)
    """α: how much more longer histories weigh."""


class Hgpo(WithinGroup):
    """Step-level credit by histories of several lengths."""

    Options: ClassVar = HgpoOptions

    def group(self, group: Group, options: HgpoOptions) -> Credit:
        """Returns the credit of one group. raw_advantages are the weighted deviations, not divided by a spread."""
        returns = discounted(group, options)
        q = penalized(returns, group, options)
        terms = _terms(group, q, options)
        return Credit(
            returns=returns, values=state_values(group, q), deltas=None, states=states(group),
            raw_advantages=nested(_weighed([term.deviations for term in terms], options), q),
            advantages=nested(_weighed([term.advantages for term in terms], options), q))

    def legend(self, options: HgpoOptions) -> dict[str, str]:
        """Returns the legend: V̄ is the mean under the shortest history, the state alone."""
        return {VALUE: "the mean Q of all steps of the group in that state, Q a step's R̂ less its penalty",
                RAW: f"Q less its mean over the steps with the same history, for 1 to {options.history + 1} states",
                ADVANTAGE: "Â" if options.mode == "mean_norm" else "the same, each deviation divided by its spread"}

    def explain(self, group: Group, credit: Credit, options: HgpoOptions, episode: int) -> Explanation:
        """Explains the numbers: the terms of all lengths of history that have one."""
        q = penalized(credit.returns, group, options)
        values, terms = state_values(group, q), _terms(group, q, options)
        first = sum(len(row) for row in q[:episode])
        return [[CalculationLine(formula=f"V̄ = mean Q of the {number_of(values[step.state][1], 'step')} in this state",
                                 result=values[step.state][0]),
                 _line("Â", [float(term.deviations[first + t]) for term in terms], options),
                 _line("A", [float(term.advantages[first + t]) for term in terms], options)]
                for t, step in enumerate(group[episode])]


class _Term(NamedTuple):
    """The credit for one k, [N] over the steps of the group; 0 for a step whose last k states no other step has."""

    deviations: Array
    """Q_t - mean."""
    advantages: Array
    """A_k."""


def _terms(group: Group, q: Nested, options: HgpoOptions) -> list[_Term]:
    """Returns the terms for k = 1 ... history + 1, up to the longest episode: beyond it no step has a history."""
    xs, last = flat(q), state_numbers(group)
    base = int(last.max()) + 1
    position = np.concatenate([np.arange(len(row)) for row in q])
    alone = -1 - np.arange(len(xs))
    terms: list[_Term] = []
    history, bound = np.zeros_like(last), 1
    for k in range(1, min(options.history + 1, max(map(len, group))) + 1):
        if bound > _LARGEST // base:
            history, bound = np.unique(history, return_inverse=True)[1], len(xs)
        # Numbers each list of k states, below `bound`. Steps with fewer than k states are `alone` below.
        history, bound = np.append(0, history[:-1]) * base + last, bound * base
        means, spreads = pool_centers(xs, np.where(position >= k - 1, history, alone), ddof=0)
        deviations = xs - means
        terms.append(_Term(deviations, deviations if options.mode == "mean_norm" else deviations / spreads))
    return terms


def _weighed(terms: Sequence[Array] | Array, options: HgpoOptions) -> Array:
    """Returns the weighted mean over k of the numbers that are not zero, elementwise; 0 if there is none."""
    weights = [weight * (np.abs(a) > ZERO) for weight, a in zip(_weights(len(terms), options), terms, strict=True)]
    total = sum(weight * a for weight, a in zip(weights, terms, strict=True))
    over = np.sum(weights, axis=0)
    return np.divide(total, over, out=np.zeros_like(over), where=over > 0)


def _weights(number: int, options: HgpoOptions) -> list[float]:
    """Returns w_k for k = 1 ... number."""
    return [(k + 1) ** options.alpha for k in range(1, number + 1)]


def _line(symbol: str, terms: list[float], options: HgpoOptions) -> CalculationLine:
    kept = [f"{plain(weight)} · ({signed(a)})" for weight, a in zip(_weights(len(terms), options), terms, strict=True)
            if abs(a) > ZERO]
    shown = f"({' + '.join(kept)}) / Σ w" if kept else "0, as no step with this history differs"
    return CalculationLine(formula=f"{symbol} = Σ w_k · (deviation for k states) / Σ w_k = {shown}",
                           result=float(_weighed(np.array(terms)[:, None], options)[0]))
