"""The calculation of a step for people: formulas with the step's own numbers.

Each estimator's `explain` builds its lines with these functions, next to the code that computes the same numbers. A
line computes its result again. `gagpo explore` compares it with the archive's number and shows no line that differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from learner.credit.group_operations import average, center, rewards, scores
from learner.credit.options import CreditOptions, RecursionOptions, ScaleOptions, StatisticsOptions
from learner.credit.types import Credit, CreditStep, Group
from services.amounts import number_of

VALUE, DELTA, RAW, ADVANTAGE = "V̄", "δ", "Â", "A"
SCALED = {"group": "Â on the scale of its group", "state": "Â on the scale of its state's steps",
          "batch": "Â on the scale of all groups of the learner step", "none": "Â, not rescaled"}
"""Value of `normalize` -> legend of A."""
NEARLY_ZERO, SMALL = 1e-4, 0.1
"""Numbers between these two are shown with significant digits: rounded to `digits` decimals they would lose most of
them. Smaller numbers would need an exponent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalculationLine:
    """One number of a step. `formula`: its symbol, the formula and the numbers. `result`: the computed value."""

    formula: str
    result: float

    @property
    def symbol(self) -> str:
        """VALUE, DELTA, RAW, ADVANTAGE, or the symbol of an intermediate number, such as AdaStep's ŵ."""
        return self.formula.partition(" ")[0]

    def __str__(self) -> str:
        return f"{self.formula} = {plain(self.result) if self.symbol == VALUE else signed(self.result)}"


Explanation = list[list[CalculationLine]]
"""[step][line] of one episode."""


def decimals(value: float, digits: int) -> str:
    """Formats a number with `digits` decimals and a typographic minus sign, and never as negative zero."""
    text = f"{value:.{digits}f}"
    return text.replace("-", "−") if float(text) else text.replace("-", "")


def plain(value: float, digits: int = 3) -> str:
    """Formats a number with `digits` decimals, or a small one with as many significant digits, so that small rewards do
    not look like zeros and a reader can recompute each line."""
    if NEARLY_ZERO <= abs(value) < SMALL:
        return f"{value:.{digits}g}".replace("-", "−")
    return decimals(value, digits)


def signed(value: float, digits: int = 3) -> str:
    """Formats a number like `plain`, with + before positive numbers."""
    text = plain(value, digits)
    return f"+{text}" if value > 0 and text.strip("0.") else text


def less(value: float) -> str:
    """Formats the second half of a difference: ` − 3.000` for 3, ` + 3.000` for -3."""
    return f" {'−' if value >= 0 else '+'} {plain(abs(value))}"


def penalty_of(step: CreditStep, options: CreditOptions) -> float:
    """Returns the local penalty of a step; 0 for a valid step and in the other modes."""
    return options.penalty if step.invalid and options.penalty_mode == "local" else 0.0


def value_at(credit: Credit, episode: int, step: int) -> float:
    """Returns V at a step. The credit must have `values` or `baselines`."""
    if credit.baselines is not None:
        return credit.baselines[episode][step]
    assert credit.values is not None
    return credit.values[credit.states[episode][step]][0]


def mean_line(sample: Sequence[float]) -> CalculationLine:
    """Explains V̄ as the mean return of all steps in the state."""
    if len(sample) == 1:
        return CalculationLine(formula="V̄ = its own R̂, as no other step of the group was in this state",
                               result=sample[0])
    return CalculationLine(formula=f"V̄ = mean R̂ of the {len(sample)} steps in this state", result=average(sample))


def delta_line(reward: float, value: float, after: float | None, options: CreditOptions) -> CalculationLine:
    """Explains δ. `after`: the value of the next state; None at the end of an episode, where it is 0."""
    taken = f"{reward:g}"
    if after is None:
        return CalculationLine(formula=f"δ = r − V̄, as the episode ended here = {taken} − {plain(value)}",
                               result=reward - value)
    return CalculationLine(
        formula=f"δ = r + γ V̄(next) − V̄ = {taken} + {options.gamma:g} · {plain(after)} − {plain(value)}",
        result=reward + options.gamma * after - value)


def recursion_line(delta: float, after: float | None, decay: float, *, penalty: float = 0.0,
                   named: str = "γλ Â(next)") -> CalculationLine:
    """Explains Â = δ + decay · Â(next) - penalty. `after`: Â of the next step; None if the episode ended."""
    formula, off = ("Â = δ − penalty", f" − {penalty:g}") if penalty else ("Â = δ", "")
    if after is None:
        numbers = f" = {plain(delta)}{off}" if off else ""
        return CalculationLine(formula=f"{formula}, as the episode ended here{numbers}", result=delta - penalty)
    return CalculationLine(
        formula=f"{formula.replace('δ', f'δ + {named}')} = {plain(delta)} + {decay:g} · ({signed(after)}){off}",
        result=delta + decay * after - penalty)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Mean and spread of Â over a sample of steps, which A is normalised by."""

    mean: float
    spread: float
    sample: str
    """Description of the sample."""


def scales(credit: Credit, options: ScaleOptions, episode: int) -> list[Scale | None]:
    """Returns the scale of each step of an episode; None if A is not normalised within the group."""
    states = credit.states[episode]
    if options.normalize == "group":
        sample = list(chain.from_iterable(credit.raw_advantages))
        mean, spread = center(sample, options.ddof)
        return [Scale(mean=mean, spread=spread, sample=f"the group's {len(sample)} steps")] * len(states)
    if options.normalize != "state":
        return [None] * len(states)
    samples: dict[str, list[float]] = {}
    for state, x in zip(chain.from_iterable(credit.states), chain.from_iterable(credit.raw_advantages), strict=True):
        samples.setdefault(state, []).append(x)
    return [_scale_of_state(samples[state], options) for state in states]


def _scale_of_state(sample: Sequence[float], options: ScaleOptions) -> Scale:
    """Returns the scale of a state. The mean of a step that is alone in its state is its own Â."""
    mean, spread = center(sample, options.ddof) if len(sample) > 1 else (sample[0], 1.0)
    floor = options.spread_floor
    return Scale(mean=mean, spread=max(spread, floor), sample=f"the {number_of(len(sample), 'step')} in this state"
                 + (f", σ at least {floor:g}" if spread < floor else ""))


def scaled_line(raw: float, scale: Scale | None, *, penalty: float = 0.0,
                term: tuple[float, float] | None = None) -> CalculationLine:
    """Explains A from Â, minus a penalty after normalising. `term`: weight and value that `broadcast` adds."""
    names = f"{' − penalty' if penalty else ''}{' + broadcast · A of GRPO' if term else ''}"
    numbers = f" − {penalty:g}" if penalty else ""
    added = -penalty
    if term is not None:
        numbers += f" + {term[0]:g} · ({signed(term[1])})"
        added += term[0] * term[1]
    if scale is None:
        return CalculationLine(formula=f"A = Â{names} = {plain(raw)}{numbers}", result=raw + added)
    return CalculationLine(
        formula=f"A = (Â − μ) / σ{names}, μ and σ over {scale.sample} = "
                f"({plain(raw)}{less(scale.mean)}) / {plain(scale.spread)}{numbers}",
        result=(raw - scale.mean) / scale.spread + added)


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
    """Explains a group without contrast (group_operations.py): V̄ = R̂, so δ and Â are 0.

    A is the local penalty and `terms`: for each step the weight and the value that `broadcast` adds.
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


def score_of(group: Group, options: CreditOptions, episode: int, step: int) -> tuple[str, float]:
    """Returns S of a step as a formula and its value: the episode's reward minus the step's local penalty."""
    total, off = sum(rewards(group, options)[episode]), penalty_of(group[episode][step], options)
    return (f"{plain(total)} − {off:g}" if off else plain(total)), total - off


def deviation_line(group: Group, options: StatisticsOptions, episode: int, step: int) -> CalculationLine:
    """Explains Â of estimators that compare episodes: S minus the mean of S."""
    _, sample = scores(group, options, options.statistics)
    mean, _ = center(sample, ddof=0)
    numbers, score = score_of(group, options, episode, step)
    over = f"{len(sample)} {'episodes' if options.statistics == 'trajectories' else 'steps'}"
    return CalculationLine(formula=f"Â = S − mean S of the group's {over} = {numbers}{less(mean)}", result=score - mean)


def score_line(group: Group, options: CreditOptions, episode: int, step: int) -> CalculationLine:
    """Explains Â of estimators without comparisons within the group: S itself."""
    numbers, score = score_of(group, options, episode, step)
    named = "R − penalty" if penalty_of(group[episode][step], options) else "R"
    return CalculationLine(formula=f"Â = S = {named}, R the reward of the episode = {numbers}", result=score)
