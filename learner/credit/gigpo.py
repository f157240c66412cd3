"""GiGPO: GRPO's credit of the episode, plus each step against the steps taken in the same state (arXiv 2505.10978).

    A_E = GRPO's advantage (grpo.py)               same mode; its statistics by the key `statistics`
    Q_t = R̂_t - p [step invalid]                   local penalty: after the returns, not propagated
    A_S = (Q_t - mean) / (std + ε)                 over all steps in the same state; mode mean_norm does not divide
    A_t = A_E + ω A_S

A state with only one step gives A_S = 0. The value of a state is the mean of Q that is subtracted there.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from learner.credit.estimator import WithinGroup
from learner.credit.explanation import ADVANTAGE, RAW, VALUE, CalculationLine, Explanation, signed
from learner.credit.group_operations import by_state, center, discounted, penalized, plus, states
from learner.credit.grpo import divided, episode_keys, episode_term
from learner.credit.options import EpisodeOptions
from learner.credit.types import Credit, Group, Nested
from services.amounts import number_of


class GigpoOptions(EpisodeOptions):
    """Options of GiGPO."""

    omega: float = Field(default=1.0, ge=0)
    """Weight of the step-level term."""


class Gigpo(WithinGroup):
    """Episode-level credit, and step-level credit against the steps taken in the same state."""

    Options: ClassVar = GigpoOptions

    def reads(self, options: GigpoOptions) -> frozenset[str]:
        """Returns GRPO's keys and those of the step-level term."""
        return episode_keys(options) | {"gamma", "omega", "state_key"}

    def group(self, group: Group, options: GigpoOptions) -> Credit:
        """Returns the credit of one group. raw_advantages are A without division by a spread."""
        returns = discounted(group, options)
        q = penalized(returns, group, options)
        values, raw_s, advantages_s = step_term(group, q, options)
        raw_e, advantages_e = episode_term(group, options)
        return Credit(returns=returns, values=values, deltas=None, states=states(group),
                      raw_advantages=plus(raw_e, options.omega, raw_s),
                      advantages=plus(advantages_e, options.omega, advantages_s))

    def legend(self, options: GigpoOptions) -> dict[str, str]:
        """Returns the legend. V̄ is the mean of returns minus penalties, with which a step is compared."""
        return {VALUE: "the mean Q of all steps of the group in that state, Q a step's R̂ less its penalty",
                RAW: "GRPO's S − mean, plus ω (Q − V̄)", ADVANTAGE: f"Â{divided(options)}"}

    def explain(self, group: Group, credit: Credit, options: GigpoOptions, episode: int) -> Explanation:
        """Explains the two terms: undivided in Â, each divided by its spread in A."""
        q = penalized(credit.returns, group, options)
        samples = by_state(group, q)
        raw_e, advantages_e = episode_term(group, options)
        lines: Explanation = []
        for t, step in enumerate(group[episode]):
            sample, x = samples[step.state], q[episode][t]
            mean, spread = center(sample, options.ddof) if len(sample) > 1 else (x, 1.0)
            term = (x - mean) / (1.0 if options.mode == "mean_norm" else spread)
            lines.append([
                CalculationLine(formula=f"V̄ = mean Q of the {number_of(len(sample), 'step')} in this state",
                                result=mean),
                _sum_line("Â = (S − mean S) + ω (Q − V̄)", raw_e[episode][t], options.omega, x - mean),
                _sum_line("A = A_E + ω A_S", advantages_e[episode][t], options.omega, term)])
        return lines


def step_term(group: Group, q: Nested, options: EpisodeOptions) -> tuple[dict[str, tuple[float, int]], Nested, Nested]:
    """Returns state -> (mean of Q, occurrences), then Q - mean and A_S of each step."""
    samples = by_state(group, q)
    centers = {state: center(xs, options.ddof) if len(xs) > 1 else (xs[0], 1.0) for state, xs in samples.items()}
    raw = [[x - centers[step.state][0] for x, step in zip(row, episode, strict=True)]
           for row, episode in zip(q, group, strict=True)]
    values = {state: (centers[state][0], len(xs)) for state, xs in samples.items()}
    if options.mode == "mean_norm":
        return values, raw, raw
    return values, raw, [[x / centers[step.state][1] for x, step in zip(row, episode, strict=True)]
                         for row, episode in zip(raw, group, strict=True)]


def _sum_line(formula: str, episode_level: float, omega: float, step_level: float) -> CalculationLine:
    return CalculationLine(formula=f"{formula} = {signed(episode_level)} + {omega:g} · ({signed(step_level)})",
                           result=episode_level + omega * step_level)
