"""GAGPO: generalised advantage estimation with group averages for a critic (arXiv 2605.13217, section 3).

    R̂_t = r_t + γ R̂_{t+1}                        return of each occurrence, R̂ = 0 after the last step
    V̄(s) = mean of R̂ over all occurrences of s     across the K episodes; repeats within one episode count
    δ_t = r_t + γ V̄(s_{t+1}) - V̄(s_t)             V̄ = 0 after the last step, won or timed out
    Â_t = δ_t + γλ Â_{t+1}                         minus the local penalty (group_operations.py)
    A_t = (Â_t - μ) / (σ + ε)                      over all steps of the group

A singleton state is its own value, V̄ = R̂, so all its credit comes from the steps that follow it. λ = 1 gives
Â = R̂ - V̄, λ = 0 gives Â = δ.
Settings: normalize `batch` takes μ and σ over all groups of the learner step, `none` leaves Â. bootstrap uses V̄ of the
state in which a budget cut an episode, if the group has that state. broadcast is the weight of GRPO's advantage in A.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from learner.credit.estimator import WithinGroup
from learner.credit.explanation import (
    ADVANTAGE,
    DELTA,
    RAW,
    VALUE,
    CalculationLine,
    Explanation,
    delta_line,
    mean_line,
    penalty_of,
    plain,
    recursion_line,
    scaled_line,
    scales,
    value_at,
)
from learner.credit.group_operations import (
    backward,
    by_state,
    discounted,
    normalized_together,
    penalized,
    rescaled,
    rewards,
    state_values,
    states,
)
from learner.credit.grpo import broadcast_keys, episode_term, with_broadcast
from learner.credit.options import BroadcastOptions, RecursionOptions, ScaleOptions
from learner.credit.types import Credit, CreditStep, Group, Nested

Values = dict[str, tuple[float, int]]
SCALED = {"group": "Â on the scale of its group", "state": "Â on the scale of its state's steps",
          "batch": "Â on the scale of all groups of the learner step", "none": "Â, not rescaled"}
"""Value of `normalize` -> legend of A."""


def recursion_keys(options: RecursionOptions) -> frozenset[str]:
    """Returns the keys that GAGPO and its variants read: `ddof` only if they divide by a spread."""
    return scale_keys(options) | {"gamma", "lam", "penalty", "penalty_mode", "bootstrap", "state_key"}


def scale_keys(options: ScaleOptions) -> frozenset[str]:
    """Returns `normalize` and the keys that it reads."""
    spread = () if options.normalize == "none" else ("ddof",)
    return frozenset({"normalize", *spread, *(("spread_floor",) if options.normalize == "state" else ())})


class GagpoOptions(RecursionOptions, BroadcastOptions):
    """Options of GAGPO."""


class GagpoFamily(WithinGroup):
    """Base of GAGPO and its variants, which differ in the value of a state."""

    def batch(self, credits: list[Credit], options: ScaleOptions) -> list[Credit]:
        """Normalises all groups together if `normalize` is `batch`."""
        return normalized_together(credits, options)


class Gagpo(GagpoFamily):
    """The paper's method: generalised advantage estimation with group averages for a critic. `mode` and `statistics`
    are those of the term that `broadcast` adds. docs/algorithms.md gives reasons for the choices that the paper leaves
    open.
    """

    Options: ClassVar = GagpoOptions

    def reads(self, options: GagpoOptions) -> frozenset[str]:
        """Returns the keys of the recursion, and GRPO's keys if its term is added."""
        return recursion_keys(options) | broadcast_keys(options)

    def group(self, group: Group, options: GagpoOptions) -> Credit:
        """Returns the credit of one group; see the module's formulas."""
        returns = discounted(group, options)
        values = state_values(group, returns)
        deltas: Nested = []
        for episode, row in zip(group, rewards(group, options), strict=True):
            v = [values[step.state][0] for step in episode] + [value_after(episode[-1], values, options)]
            deltas.append([r + options.gamma * v[t + 1] - v[t] for t, r in enumerate(row)])
        raw = [backward(row, options.gamma * options.lam) for row in deltas]
        return finish(group, options, Credit(returns=returns, values=values, deltas=deltas, raw_advantages=raw,
                                             advantages=raw, states=states(group)))

    def legend(self, options: GagpoOptions) -> dict[str, str]:
        """Returns the legend. V̄ is a mean over the group."""
        return family_legend("the mean R̂ of all steps of the group in that state", options)

    def explain(self, group: Group, credit: Credit, options: GagpoOptions, episode: int) -> Explanation:
        """Explains the numbers. The next step's Â enters before its own penalty, which comes after the recursion; under
        `normalize: state` no Â has a penalty."""
        steps, raw = group[episode], credit.raw_advantages[episode]
        returns, scale = by_state(group, credit.returns), scales(credit, options, episode)
        term = episode_term(group, options)[1][episode] if options.broadcast else None
        late = options.normalize == "state"
        lines: Explanation = []
        for t, (step, delta) in enumerate(zip(steps, family_deltas(group, credit, options, episode), strict=True)):
            last, off = t + 1 == len(steps), 0.0 if late else penalty_of(step, options)
            back = 0.0 if last or late else penalty_of(steps[t + 1], options)
            recursion = recursion_line(
                (credit.deltas or [])[episode][t], None if last else raw[t + 1] + back, options.gamma * options.lam,
                penalty=off, named="γλ Â(next, before its penalty)" if back else "γλ Â(next)")
            lines.append([mean_line(returns[step.state]), delta, recursion])
            if options.normalize != "batch":
                lines[t].append(scaled_line(raw[t], scale[t], penalty=penalty_of(step, options) if late else 0.0,
                                            term=None if term is None else (options.broadcast, term[t])))
        return lines


def family_legend(value: str, options: RecursionOptions, *, elsewhere: str = "") -> dict[str, str]:
    """Returns the legend of GAGPO and its variants. `value`: the meaning of V̄. `elsewhere`: where the decay differs."""
    return {VALUE: value, DELTA: "what the action changed, r + γ V̄(next) − V̄: below 0 it led to a state worth less",
            RAW: f"advantage: δ, and what followed, fading by γλ = {options.gamma * options.lam:g} a step{elsewhere}",
            ADVANTAGE: SCALED[options.normalize]}


def family_deltas(group: Group, credit: Credit, options: RecursionOptions, episode: int) -> list[CalculationLine]:
    """Returns the line of δ at each step, for GAGPO and its variants."""
    steps, r = group[episode], rewards(group, options)[episode]
    v = [value_at(credit, episode, t) for t in range(len(steps))]
    cut = steps[-1].cut_in if options.bootstrap else None
    ended = (credit.values or {}).get(cut or "")
    after = [*v[1:], None if ended is None else ended[0]]
    return [delta_line(*numbers, options) for numbers in zip(r, v, after, strict=True)]


def explain_without_contrast(group: Group, credit: Credit, options: RecursionOptions, episode: int,
                             terms: Sequence[tuple[float, float]] | None = None) -> Explanation:
    """Explains a group in which every return is that of its state: V̄ = R̂, so δ, Â and A are 0 but for a penalty.

    `terms`: for each step the weight and the value that `broadcast` adds.
    """
    lines: Explanation = []
    for t, (step, value, delta) in enumerate(zip(group[episode], credit.returns[episode],
                                                 family_deltas(group, credit, options, episode), strict=True)):
        same = CalculationLine(formula=f"V̄ = R̂, the same for every step of the group in this state = {plain(value)}",
                               result=value)
        lines.append([same, delta, CalculationLine(formula="Â = 0, as nothing can be compared", result=0.0)])
        if options.normalize != "batch":
            lines[-1].append(scaled_line(0.0, None, penalty=penalty_of(step, options),
                                         term=None if terms is None else terms[t]))
    return lines


def scaled_then_penalized(raw: Nested, group: Group, options: ScaleOptions) -> Nested:
    """Returns the advantages of a variant: Â on the scale of its group or state if `normalize` asks for that, then the
    local penalty is subtracted. In `Gagpo` itself the penalty comes first, unless `normalize` is `state`."""
    return penalized(rescaled(raw, group, options), group, options)


def value_after(last: CreditStep, values: Values, options: RecursionOptions) -> float:
    """Returns V̄ after an episode's last step."""
    if not options.bootstrap or last.cut_in is None:
        return 0.0
    return values.get(last.cut_in, (0.0, 0))[0]


def finish(group: Group, options: GagpoOptions, credit: Credit) -> Credit:
    """Finishes the credit after the recursion: subtracts the local penalty, normalises, adds the broadcast term.

    Under `normalize: state` the penalty comes last: a step that is alone in its state would lose it, and the only
    invalid one of a state would get it at unit size.
    """
    raw = credit.raw_advantages
    if options.normalize == "state":
        advantages = scaled_then_penalized(raw, group, options)
    else:
        raw = penalized(raw, group, options)
        advantages = rescaled(raw, group, options)
    return replace(credit, raw_advantages=raw, advantages=with_broadcast(advantages, group, options))
