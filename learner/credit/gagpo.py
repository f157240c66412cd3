"""GAGPO: generalised advantage estimation with group averages for a critic (arXiv 2605.13217, section 3).

    R̂_t = r_t + γ R̂_{t+1}                        return of each occurrence, R̂ = 0 after the last step
    V̄(s) = mean of R̂ over all occurrences of s     across the K episodes; repeats within one episode count
    δ_t = r_t + γ V̄(s_{t+1}) - V̄(s_t)             V̄ = 0 after the last step, won or timed out
    Â_t = δ_t + γλ Â_{t+1}                         minus the local penalty (group_operations.py)
    A_t = (Â_t - μ) / (σ + ε)                      over all steps of the group

The value of a singleton state is its own return, V̄ = R̂, so its credit comes from the values that follow it. λ = 1
gives Â = R̂ - V̄, λ = 0 gives Â = δ.
Settings: normalize `batch` takes μ and σ over all groups of the learner step, `state` over the group's steps in the
same state, and subtracts the local penalty after that; `none` leaves Â. bootstrap uses V̄ of the state in which a budget
cut an episode, if the group has that state. broadcast is the weight of GRPO's advantage in A.
"""

from __future__ import annotations

from typing import ClassVar

from learner.credit.estimator import WithinGroup
from learner.credit.explanation import (
    Explanation,
    family_deltas,
    family_legend,
    mean_line,
    penalty_of,
    recursion_line,
    scaled_line,
    scales,
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

    def group(self, group: Group, options: GagpoOptions) -> Credit:
        """Returns the credit of one group; see the module's formulas."""
        returns = discounted(group, options)
        values = state_values(group, returns)
        deltas: Nested = []
        for episode, r in zip(group, rewards(group, options), strict=True):
            v = [values[step.state][0] for step in episode] + [value_after(episode[-1], values, options)]
            deltas.append([r[t] + options.gamma * v[t + 1] - v[t] for t in range(len(r))])
        raw = [backward(delta, options.gamma * options.lam) for delta in deltas]
        if options.normalize == "state":
            # If the penalty came first, normalising would remove it from a step that is alone in its state, and give
            # it unit size at the only invalid step of a state.
            advantages = scaled_then_penalized(raw, group, options)
        else:
            raw = penalized(raw, group, options)
            advantages = rescaled(raw, group, options)
        return Credit(returns=returns, values=values, deltas=deltas, raw_advantages=raw,
                      advantages=with_broadcast(advantages, group, options), states=states(group))

    def reads(self, options: GagpoOptions) -> frozenset[str]:
        """Returns the keys of the recursion, and GRPO's keys if its term is added."""
        return recursion_keys(options) | broadcast_keys(options)

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


def value_after(last: CreditStep, values: dict[str, tuple[float, int]], options: RecursionOptions) -> float:
    """Returns V̄ after an episode's last step, 0 without `bootstrap`. `values`: state -> (V̄, occurrences)."""
    if not options.bootstrap or last.cut_in is None:
        return 0.0
    return values.get(last.cut_in, (0.0, 0))[0]


def scaled_then_penalized(raw: Nested, group: Group, options: ScaleOptions) -> Nested:
    """Returns A of a variant: Â on the scale of its group or state if `normalize` asks for that, less a local penalty.
    In `Gagpo` itself the penalty comes first, unless `normalize` is `state`."""
    return penalized(rescaled(raw, group, options), group, options)


def recursion_keys(options: RecursionOptions) -> frozenset[str]:
    """Returns the keys that GAGPO and its variants read: `ddof` only if they divide by a spread."""
    return scale_keys(options) | {"gamma", "lam", "penalty", "penalty_mode", "bootstrap", "state_key"}


def scale_keys(options: ScaleOptions) -> frozenset[str]:
    """Returns `normalize` and the keys that it reads."""
    spread = () if options.normalize == "none" else ("ddof",)
    return frozenset({"normalize", *spread, *(("spread_floor",) if options.normalize == "state" else ())})
