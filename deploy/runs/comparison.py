"""The before/after table of a run: each policy on the same held-out games, and the paired gains of RL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envservice.registry import stands_in_for
from services.amounts import number_of
from services.statistics import paired_gain
from services.telemetry.evaluation_labels import COLD, TITLES, TRAINED, curve_of

Kind = tuple[str, float]
"""Split and temperature of an evaluation. Success at two of them is not one measure, even at one step."""


def evaluation_kind(row: Mapping[str, Any]) -> Kind:
    """Returns the kind of an evaluation."""
    return row["split"], row["temperature"]


REPEATED = tuple(f"{name}{end}" for name in ("pass_at", "best_score") for end in ("", "_low", "_high"))
"""Keys of an evaluation that plays each game several times. Each maps k to a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BestOf:
    """The expected best of k episodes of a game: a mean over games, with its 95% interval."""

    name: str
    """`pass@4`, or `best score of 4`."""
    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        form = ".1%" if self.name.startswith("pass@") else ".3g"
        return f"{self.name} {self.mean:{form}} [{self.low:{form}}, {self.high:{form}}]"


def repeats(row: Mapping[str, Any]) -> tuple[BestOf, ...]:
    """Returns the best of k of an evaluation that plays each game several times; () for another one, or an older."""
    found: list[BestOf] = []
    for key, title in (("pass_at", "pass@"), ("best_score", "best score of ")):
        means, lows, highs = (row.get(f"{key}{end}") or {} for end in ("", "_low", "_high"))
        found += [BestOf(name=f"{title}{k}", mean=means[k], low=lows[k], high=highs[k])
                  for k in means if None not in (means[k], lows.get(k), highs.get(k))]
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyResult:
    """Success rate of one policy at one temperature on held-out games, with its 95% interval, all in [0, 1]."""

    label: str
    temperature: float
    games: int
    success: float
    low: float
    high: float
    repeats: tuple[BestOf, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Mean paired difference in success per game, RL minus `over`, with its 95% interval."""

    over: str
    temperature: float
    gain: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """Returns `better` or `worse` if the interval excludes zero, else that no difference is shown.

        It is about the games of one run. Another seed may learn more or less.
        """
        return "better (one seed)" if self.low > 0 else "worse (one seed)" if self.high < 0 else "no difference shown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The content of the table."""

    rows: tuple[PolicyResult, ...]
    gains: tuple[Gain, ...]


def stand_in_notes(evaluations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a sentence for each environment of these evaluations that stands in for a published one, such as
    generated games for ALFWorld's."""
    played = dict.fromkeys(row["env"] for row in evaluations if row.get("env"))
    return [f"played on {env}: these results are not results on {name}"
            for env in played if (name := stands_in_for(env))]


def heldout(evaluations: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the evaluations on the held-out games. If the run has gone on with more steps since, the policy after RL
    and the control have to play them again, so what they had played is left out."""
    trained = [row for row in evaluations if row["label"] == TRAINED]  # a run with eval.every=0 has no curve
    evaluated = max((row["step"] for row in [*curve_of(evaluations), *trained]), default=0)
    return [row for row in evaluations
            if row["label"] == COLD or (row["label"] in TITLES and row["step"] >= evaluated)]


def after_rl(evaluations: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the evaluations of the policy after RL on the held-out games."""
    return [row for row in heldout(evaluations) if row["label"] == TRAINED]


def judged_by(evaluations: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the evaluations that a run is judged by: the held-out games after RL, else the curve's last one."""
    curve = curve_of(evaluations)
    return after_rl(evaluations) or curve[-1:]


def compare(evaluations: Sequence[dict[str, Any]]) -> Comparison | None:
    """Builds the table from rows of evaluations.jsonl. Returns None if the run has not played the held-out games.

    A paired gain leaves out games that ended in a fault on either side (the field `dropped` counts them). Where no game
    is left, there is no gain.
    """
    found = {(e["label"], e["temperature"]): e for e in heldout(evaluations)}
    if not found:
        return None
    rows = tuple(
        PolicyResult(label=label, temperature=t, games=e["tasks"], success=e["success_rate"],
            low=e["success_low"], high=e["success_high"], repeats=repeats(e))
        for (label, t), e in found.items()
    )
    gains: list[Gain] = []
    for (label, t), e in found.items():
        trained = found.get((TRAINED, t))
        if label == TRAINED or trained is None:
            continue
        both = e["success_by_task"].keys() & trained["success_by_task"].keys()
        if not both:
            continue
        gain, low, high = paired_gain(
            {task: e["success_by_task"][task] for task in both},
            {task: trained["success_by_task"][task] for task in both},
        )
        gains.append(Gain(over=label, temperature=t, gain=gain, low=low, high=high))
    return Comparison(rows=rows, gains=tuple(gains))


def as_lines(comparison: Comparison, *, env: str) -> list[str]:
    """Returns the lines of the table as plain text."""
    lines = [f"Success on held-out games ({env}), mean and 95% interval:"]
    for row in comparison.rows:
        lines.append(
            f"  {TITLES[row.label]:<36} T={row.temperature:<4g} {row.success:6.1%}  "
            f"[{row.low:6.1%}, {row.high:6.1%}]  {number_of(row.games, 'game')}"
        )
        lines += [f"    {best}" for best in row.repeats]
    for gain in comparison.gains:
        lines.append(
            f"  RL - {TITLES[gain.over]:<31} T={gain.temperature:<4g} {100 * gain.gain:+5.1f}   "
            f"[{100 * gain.low:+6.1f}, {100 * gain.high:+6.1f}]  points, paired by game: {gain.verdict}"
        )
    return lines
