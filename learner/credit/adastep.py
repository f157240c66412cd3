"""AdaStep: GiGPO with a weight for each state, by how much of its returns the actions explain (arXiv 2610.03223).

    A_E, Q_t, A_S                                  as in GiGPO (gigpo.py)
    ŵ(s) = 1 - Σ_a (n_sa / N_s) Var_sa / Var_s     (equation 17)
    A_t = A_E + ŵ(s_t) A_S                         (equation 18)

Var_s is the variance of Q over the N_s steps in state s, Var_sa that over the n_sa of them with the action a, both with
the number of steps as divisor, and before any division by a spread. ŵ is between 0 (returns do not depend on the
action) and 1 (they depend on nothing else). It needs two known actions, two steps of each and Var_s > 0; otherwise it
is 1, the paper's choice. We could not read the paper's own text: the equations are as three public summaries and a
reimplementation give them, which agree. That Q has the local penalty follows GiGPO's code.

ECPO (arXiv 2606.05885) is the same with two more parts, each an option here:

    Q̃_t = (n_sa mean Q_sa + κ mean Q_s) / (n_sa + κ)     in place of Q in A_S; κ = shrinkage, the paper's 2
    ŵ(s) tanh(N_s / τ)                                    in place of ŵ; τ = gate, which our sources do not give

They, too, are as two public summaries give them. A_S is over the steps of the state, not over its actions.
"""

from __future__ import annotations

from math import fsum, tanh
from typing import ClassVar

from pydantic import Field

from learner.credit.estimator import WithinGroup
from learner.credit.explanation import ADVANTAGE, RAW, VALUE, CalculationLine, Explanation, plain, signed
from learner.credit.gigpo import step_term
from learner.credit.group_operations import average, discounted, penalized, plus, same, state_values, states
from learner.credit.grpo import divided, episode_keys, episode_term
from learner.credit.options import EpisodeOptions
from learner.credit.types import Credit, Group, Nested
from services.amounts import number_of

Actions = dict[str | None, list[float]]
"""Action -> Q of the steps of one state that took it."""


class AdastepOptions(EpisodeOptions):
    """Options of AdaStep: the parts that ECPO adds."""

    shrinkage: float | None = Field(default=None, ge=0)
    """κ of ECPO: a step is worth its action's mean Q in that state, drawn towards the state's mean Q as if by κ steps.
    None: it is worth its own Q."""
    gate: float = Field(default=0.0, ge=0)
    """τ of ECPO: the step's term is multiplied by tanh(n / τ), n the number of steps in its state. 0: it is not."""


class Adastep(WithinGroup):
    """Episode-level credit, and step-level credit as far as actions explain returns. With `shrinkage` and `gate` it is
    ECPO."""

    Options: ClassVar = AdastepOptions
    compares_actions: ClassVar[bool] = True
    """Whether every step needs its action. Absent means False."""

    def reads(self, options: AdastepOptions) -> frozenset[str]:
        """Returns GRPO's keys and those of the step-level term."""
        return episode_keys(options) | {"gamma", "state_key", "shrinkage", "gate"}

    def group(self, group: Group, options: AdastepOptions) -> Credit:
        """Returns the credit of one group. raw_advantages are A without division by a spread."""
        returns = discounted(group, options)
        q = penalized(returns, group, options)
        samples = _samples(group, q)
        _, raw_s, advantages_s = step_term(group, _shrunk(group, q, samples, options), options)
        raw_e, advantages_e = episode_term(group, options)
        weight, values = _weights(samples, options), state_values(group, q)
        return Credit(returns=returns, values=values, deltas=None, states=states(group),
                      raw_advantages=plus(raw_e, 1.0, _times(weight, raw_s, group)),
                      advantages=plus(advantages_e, 1.0, _times(weight, advantages_s, group)))

    def legend(self, options: AdastepOptions) -> dict[str, str]:
        """Returns the legend."""
        worth = "Q − V̄" if options.shrinkage is None else "Q̃ − mean Q̃"
        return {VALUE: "the mean Q of all steps of the group in that state, Q a step's R̂ less its penalty",
                RAW: f"GRPO's S − mean, plus ŵ ({worth}), ŵ the share of the state's variance that actions explain",
                ADVANTAGE: f"Â{divided(options)}"}

    def explain(self, group: Group, credit: Credit, options: AdastepOptions, episode: int) -> Explanation:
        """Explains ŵ and Â."""
        q = penalized(credit.returns, group, options)
        samples = _samples(group, q)
        _, raw_s, _ = step_term(group, _shrunk(group, q, samples, options), options)
        weight, (raw_e, _) = _weights(samples, options), episode_term(group, options)
        worth = "Q − V̄" if options.shrinkage is None else "Q̃ − mean Q̃"
        gate = f", times tanh(n / {options.gate:g})" if options.gate else ""
        return [[CalculationLine(formula="ŵ = 1 − (variance within actions) / variance, over the "
                                         f"{number_of(_count(samples[step.state]), 'step')} in this state{gate}",
                                 result=weight[step.state]),
                 CalculationLine(formula=f"Â = (S − mean S) + ŵ ({worth}) = {signed(e)} + {plain(weight[step.state])} "
                                         f"· ({signed(s)})", result=e + weight[step.state] * s)]
                for step, e, s in zip(group[episode], raw_e[episode], raw_s[episode], strict=True)]


def _times(weight: dict[str, float], rows: Nested, group: Group) -> Nested:
    return [[weight[step.state] * x for x, step in zip(row, episode, strict=True)]
            for row, episode in zip(rows, group, strict=True)]


def _samples(group: Group, q: Nested) -> dict[str, Actions]:
    """Returns state -> action -> Q of the steps that took it there."""
    samples: dict[str, Actions] = {}
    for row, episode in zip(q, group, strict=True):
        for x, step in zip(row, episode, strict=True):
            samples.setdefault(step.state, {}).setdefault(step.action, []).append(x)
    return samples


def _count(actions: Actions) -> int:
    return sum(map(len, actions.values()))


def _shrunk(group: Group, q: Nested, samples: dict[str, Actions], options: AdastepOptions) -> Nested:
    """Returns Q̃ of each step; Q itself without shrinkage."""
    prior = options.shrinkage
    if prior is None:
        return q
    means = {state: average([x for xs in actions.values() for x in xs]) for state, actions in samples.items()}
    worth = {(state, action): means[state] if len(actions) == 1 else
             (fsum(xs) + prior * means[state]) / (len(xs) + prior)
             for state, actions in samples.items() for action, xs in actions.items()}
    return [[worth[step.state, step.action] for step in episode] for episode in group]


def _weights(samples: dict[str, Actions], options: AdastepOptions) -> dict[str, float]:
    """Returns ŵ of each state, times its gate."""
    return {state: _weight(actions) * (tanh(_count(actions) / options.gate) if options.gate else 1.0)
            for state, actions in samples.items()}


def _weight(actions: Actions) -> float:
    """Returns ŵ from the numbers of each action. Steps with an unknown action (None) give 1."""
    everything = [x for xs in actions.values() for x in xs]
    if len(actions) < 2 or None in actions or min(map(len, actions.values())) < 2 or same(everything):
        return 1.0
    within = fsum([_squares(xs) for xs in actions.values()])
    return min(max(1.0 - within / _squares(everything), 0.0), 1.0)


def _squares(xs: list[float]) -> float:
    """Returns the sum of squared deviations from the mean. Divided by the same N_s, such sums are equation 17's."""
    mean = average(xs)
    return fsum([(x - mean) ** 2 for x in xs])
