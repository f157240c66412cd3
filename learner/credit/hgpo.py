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

from typing import ClassVar, Literal

from pydantic import Field

from learner.credit.base import WithinGroup
from learner.credit.explanation import ADVANTAGE, RAW, VALUE, CalculationLine, Explanation, plain, signed
from learner.credit.group_operations import average, center, discounted, penalized, state_values, states
from learner.credit.options import CreditOptions
from learner.credit.types import ZERO, Credit, Group, Nested

History = tuple[str, ...]


class HgpoOptions(CreditOptions):
    """Options of HGPO."""

    mode: Literal["mean_std_norm", "mean_norm"] = "mean_std_norm"
    """Whether deviations from the mean are divided by the standard deviation."""
    history: int = Field(default=2, ge=0)
    """Number of earlier states that a step's longest history has, beside its own."""
    alpha: float = Field(default=1.0, ge=0)
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
            raw_advantages=[[_weighed([(k, a) for k, a, _ in step], options) for step in row] for row in terms],
            advantages=[[_weighed([(k, a) for k, _, a in step], options) for step in row] for row in terms])

    def legend(self, options: HgpoOptions) -> dict[str, str]:
        """Returns the legend: V̄ is the mean under the shortest history, the state alone."""
        return {VALUE: "the mean Q of all steps of the group in that state, Q a step's R̂ less its penalty",
                RAW: f"Q less its mean over the steps with the same history, for 1 to {options.history + 1} states",
                ADVANTAGE: "Â" if options.mode == "mean_norm" else "the same, each deviation divided by its spread"}

    def explain(self, group: Group, credit: Credit, options: HgpoOptions, episode: int) -> Explanation:
        """Explains the numbers: the terms of all lengths of history that have one."""
        q = penalized(credit.returns, group, options)
        values, row = state_values(group, q), _terms(group, q, options)[episode]
        return [[CalculationLine(formula=f"V̄ = mean Q of the {values[step.state][1]} steps in this state",
                                 result=values[step.state][0]),
                 _line("Â", [(k, a) for k, a, _ in terms], options), _line("A", [(k, a) for k, _, a in terms], options)]
                for step, terms in zip(group[episode], row, strict=True)]


def _terms(group: Group, q: Nested, options: HgpoOptions) -> list[list[list[tuple[int, float, float]]]]:
    """Returns for each step its (k, deviation, A_k), for each k whose group has several steps."""
    samples: dict[History, list[float]] = {}
    for row, keys in zip(q, states(group), strict=True):
        for t, x in enumerate(row):
            for history in _histories(keys, t, options):
                samples.setdefault(history, []).append(x)
    divide = options.mode == "mean_std_norm"
    centers = {history: (average(xs), center(xs, ddof=0)[1] if divide else 1.0)
               for history, xs in samples.items() if len(xs) > 1}
    return [[[(len(history), x - centers[history][0], (x - centers[history][0]) / centers[history][1])
              for history in _histories(keys, t, options) if history in centers] for t, x in enumerate(row)]
            for row, keys in zip(q, states(group), strict=True)]


def _histories(keys: list[str], t: int, options: HgpoOptions) -> list[History]:
    return [tuple(keys[t - k + 1:t + 1]) for k in range(1, min(options.history, t) + 2)]


def _weighed(terms: list[tuple[int, float]], options: HgpoOptions) -> float:
    """Returns the weighted mean of the numbers that are not zero."""
    kept = [((k + 1) ** options.alpha, a) for k, a in terms if abs(a) > ZERO]
    return sum(w * a for w, a in kept) / sum(w for w, _ in kept) if kept else 0.0


def _line(symbol: str, terms: list[tuple[int, float]], options: HgpoOptions) -> CalculationLine:
    kept = [f"{plain((k + 1) ** options.alpha)} · ({signed(a)})" for k, a in terms if abs(a) > ZERO]
    shown = f"({' + '.join(kept)}) / Σ w" if kept else "0, as no step with this history differs"
    return CalculationLine(formula=f"{symbol} = Σ w_k · (deviation for k states) / Σ w_k = {shown}",
                           result=_weighed(terms, options))
