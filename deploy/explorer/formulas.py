"""How the numbers of a step come about: the formulas of docs/algorithms.md with the step's own numbers put in.

A line stands only where it gives the archive's number again. Switches that change a formula (`bootstrap` at the last
step, `broadcast`, `normalize: batch`, the penalty as a reward) and estimators with other formulas lose the line by
that, so no page shows a sum that is not the run's.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from math import fsum

from deploy.explorer.filters import number, signed
from deploy.explorer.groups import Group, ShownEpisode, StepView
from services.config.tree import CreditSection

TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class _Norm:
    """Mean and spread of Â over the steps of the group."""

    mean: float
    spread: float
    steps: int


def sums(group: Group, episode: ShownEpisode, options: CreditSection) -> list[list[str]]:
    """For each step of the episode its lines: V̄, δ, Â, A, as far as the formulas of the GAGPO family give them."""
    from learner.credit.group_operations import center

    raw = [step.raw for step in chain.from_iterable(other.steps for other in group.episodes) if step.raw is not None]
    mean, spread = center(raw, options.ddof) if raw and options.normalize == "group" else (0.0, 1.0)
    norm = _Norm(mean=mean, spread=spread, steps=len(raw))
    return [_lines(group, step, after, options, norm)
            for step, after in zip(episode.steps, [*episode.steps[1:], None], strict=True)]


def _lines(group: Group, step: StepView, after: StepView | None, options: CreditSection, norm: _Norm) -> list[str]:
    if step.delta is None:
        return []
    found = [(step.value, _value(group, step)), (step.delta, _delta(step, after, options))]
    if step.raw is not None:
        found += [(step.raw, _raw(group, step, after, options)), (step.advantage, _advantage(step, options, norm))]
    return [f"{formula} = {number(archived) if formula[0] == 'V' else signed(archived)}"
            for archived, (formula, result) in found if archived is not None and abs(result - archived) < TOLERANCE]


def _value(group: Group, step: StepView) -> tuple[str, float]:
    returns = [visit.step.ret or 0.0 for visit in group.visits.get(step.state or "", [])]
    if len(returns) < 2:
        return "V̄ = its own R̂, as no other step of the group was in this state", step.ret or 0.0
    return f"V̄ = mean R̂ of the {len(returns)} steps in this state", fsum(returns) / len(returns)


def _delta(step: StepView, after: StepView | None, options: CreditSection) -> tuple[str, float]:
    value = step.value or 0.0
    if after is None:
        return f"δ = r − V̄, as the episode ended here = {step.reward:g} − {number(value)}", step.reward - value
    then = after.value or 0.0
    return (f"δ = r + γ V̄(next) − V̄ = {step.reward:g} + {options.gamma:g} · {number(then)} − {number(value)}",
            step.reward + options.gamma * then - value)


def _raw(group: Group, step: StepView, after: StepView | None, options: CreditSection) -> tuple[str, float]:
    delta, off = step.delta or 0.0, _penalty(step, options) if _early(options) else 0.0
    formula, less = ("Â = δ − penalty", f" − {off:g}") if off else ("Â = δ", "")
    if after is None:
        return f"{formula}, as the episode ended here{f' = {number(delta)}{less}' if less else ''}", delta - off
    back = _penalty(after, options) if _early(options) else 0.0
    then = (after.raw or 0.0) + back
    alone = len({visit.k for visit in group.visits.get(after.state or "", [])}) == 1
    lam = 1.0 if alone and options.estimator == "gagpo_loo" else options.lam
    named = "Â(next, before its penalty)" if back else "Â(next)"
    return (f"{formula.replace('δ', f'δ + γλ {named}')} = "
            f"{number(delta)} + {options.gamma * lam:g} · ({signed(then)}){less}",
            delta + options.gamma * lam * then - off)


def _advantage(step: StepView, options: CreditSection, norm: _Norm) -> tuple[str, float]:
    raw, off = step.raw or 0.0, 0.0 if _early(options) else _penalty(step, options)
    named, less = (" − penalty", f" − {off:g}") if off else ("", "")
    if options.normalize != "group":
        return f"A = Â{named} = {number(raw)}{less}", raw - off
    mean = f"{'−' if norm.mean >= 0 else '+'} {number(abs(norm.mean))}"
    return (f"A = (Â − μ) / σ{named}, μ and σ over the group's {norm.steps} steps = "
            f"({number(raw)} {mean}) / {number(norm.spread)}{less}",
            (raw - norm.mean) / norm.spread - off)


def _penalty(step: StepView, options: CreditSection) -> float:
    return 0.0 if step.valid or options.penalty_mode != "local" else options.penalty


def _early(options: CreditSection) -> bool:
    """The penalty comes off Â; the variants of GAGPO take it off A."""
    return options.estimator == "gagpo"
