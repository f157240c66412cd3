"""The result of a run: its policies on the same held-out games, the paired gains of RL, and the verdict."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envservice.registry import stands_in_for
from services.amounts import number_of
from services.process.packages import program
from services.statistics import paired_gain
from services.telemetry.evaluations import COLD, MORE, TITLES, TRAINED, curve_of, env_scores, tasks_by_env

Kind = tuple[str, float]
"""Split and temperature of an evaluation. Success at two of them is not one measure, even at one step."""


def evaluation_kind(row: Mapping[str, Any]) -> Kind:
    """Returns the kind of an evaluation."""
    return row["split"], row["temperature"]


def by_kind(rows: Iterable[Mapping[str, Any]]) -> dict[Kind, list[Mapping[str, Any]]]:
    """Returns evaluations by their kind, in order."""
    kinds: dict[Kind, list[Mapping[str, Any]]] = {}
    for row in rows:
        kinds.setdefault(evaluation_kind(row), []).append(row)
    return kinds


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
    """Returns the best of k of an evaluation that plays each game several times. (): it played each once, or an older
    version wrote the row."""
    rows: list[BestOf] = []
    for key, title in (("pass_at", "pass@"), ("best_score", "best score of ")):
        means, lows, highs = (row.get(f"{key}{end}") or {} for end in ("", "_low", "_high"))
        rows += [BestOf(name=f"{title}{k}", mean=means[k], low=lows[k], high=highs[k])
                  for k in means if None not in (means[k], lows.get(k), highs.get(k))]
    return tuple(rows)


RULES = ("score_by_rule", "full_score_by_rule")
"""Keys of an evaluation in an environment with several rules for its score. Each maps a rule to a number."""


def rule_scores(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns a text for each rule by which the environment scores, such as `strict: score 0.55, full score 24.0%`.
    """
    scores, full = (row.get(key) or {} for key in RULES)
    return tuple(f"{rule}: score {scores[rule]:.3g}, full score {full[rule]:.1%}"
                 for rule in scores if None not in (scores[rule], full.get(rule)))


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
    rules: tuple[str, ...] = ()
    """Score by each of the environment's rules."""
    environments: tuple[str, ...] = ()
    """Success in each environment of a run with several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Mean paired difference in success per game, RL minus `over`, with its 95% interval."""

    over: str
    temperature: float
    gain: float
    low: float
    high: float
    env: str = ""
    """The environment of the games, in a run of several. Empty: all of them."""

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
    played = dict.fromkeys(env for row in evaluations if row.get("env") for env in row["env"].split("+"))
    return [f"played on {env}: these results are not results on {name}"
            for env in played if (name := stands_in_for(env))]


def heldout(evaluations: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the evaluations on the held-out games. If the run was continued with more steps since, the policy after
    RL and the control have to play them again, so their earlier results are left out."""
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

    A paired gain leaves out games that ended in a fault on either side (the field `dropped` counts them). If no game
    is left, there is no gain.
    """
    played = {(row["label"], row["temperature"]): row for row in heldout(evaluations)}
    if not played:
        return None
    rows = [PolicyResult(label=label, temperature=t, games=row["tasks"], success=row["success_rate"],
                         low=row["success_low"], high=row["success_high"], repeats=repeats(row),
                         rules=rule_scores(row), environments=env_scores(row))
            for (label, t), row in played.items()]
    gains: list[Gain] = []
    for (label, t), row in played.items():
        trained = played.get((TRAINED, t))
        if label != TRAINED and trained is not None and (interval := gain_of(row, trained)):
            gain, low, high = interval
            gains.append(Gain(over=label, temperature=t, gain=gain, low=low, high=high))
            gains += _gains_by_env(row, trained, over=label)
    return Comparison(rows=tuple(rows), gains=tuple(gains))


def _gains_by_env(before: Mapping[str, Any], after: Mapping[str, Any], *, over: str) -> Iterator[Gain]:
    """Yields the paired gain in each environment of a run with several."""
    theirs = tasks_by_env(after)
    for env, tasks in tasks_by_env(before).items():
        if env in theirs and (interval := gain_of({"success_by_task": tasks}, {"success_by_task": theirs[env]})):
            gain, low, high = interval
            yield Gain(over=over, temperature=after["temperature"], gain=gain, low=low, high=high, env=env)


def gain_of(before: Mapping[str, Any], after: Mapping[str, Any], *,
            comparisons: int = 1) -> tuple[float, float, float] | None:
    """Returns the paired gain in success of an evaluation over another with its interval, or None if they share no
    game. `comparisons`: see paired_gain."""
    one, two = before["success_by_task"], after["success_by_task"]
    both = one.keys() & two.keys()
    return paired_gain({task: one[task] for task in both}, {task: two[task] for task in both},
                       comparisons=comparisons) if both else None


def as_lines(comparison: Comparison, *, env: str) -> list[str]:
    """Returns the lines of the table as plain text."""
    lines = [f"Success on held-out games ({env}), mean and 95% interval:"]
    for row in comparison.rows:
        lines.append(
            f"  {TITLES[row.label]:<42} T={row.temperature:<4g} {row.success:6.1%}  "
            f"[{row.low:6.1%}, {row.high:6.1%}]  {number_of(row.games, 'game')}"
        )
        lines += [f"    {text}" for text in (*row.environments, *row.repeats, *row.rules)]
    for gain in comparison.gains:
        name = f"after RL - {TITLES[gain.over]}" if not gain.env else f"  in {gain.env}"
        lines.append(
            f"  {name:<42} T={gain.temperature:<4g} {100 * gain.gain:+5.1f}   "
            f"[{100 * gain.low:+6.1f}, {100 * gain.high:+6.1f}]  points, paired by game: {gain.verdict}"
        )
    return lines


Evaluations = Sequence[dict[str, Any]]
NARROW = 0.05
"""Width of an interval below which rounding to points would hide on which side of 0 it lies."""
ALIGNED = 60
"""Characters up to which commands are aligned. One that plays a game of ALFWorld has twice as many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Success before and after RL at one temperature. The gain is paired by game, with its 95% interval; all in [0, 1].

    `more`: success of the cold start after as many more minutes as RL took, if the run compared them.
    """

    temperature: float
    before: float
    after: float
    gain: float
    low: float
    high: float
    more: float | None
    games: str
    """The games that were played, for example `256 held-out games`. If they stand in for those of a published
    environment, it says so."""

    @property
    def text(self) -> str:
        """Returns the sentence.

        `51% -> 70% at T=1, +19 points [12, 26]; more cold start 38% (256 held-out games, one seed)`
        """
        shown = "" if self.low > 0 or self.high < 0 else ", no difference shown"
        before, after, gain = (round(100 * each) for each in (self.before, self.after, self.gain))
        # 52.4 -> 52.6 would read 52% -> 53%, 0 points.
        digits = 1 if self.high - self.low < NARROW or after - before != gain else 0
        more = "" if self.more is None else f"; more cold start {self.more:.{digits}%}"
        return (f"{self.before:.{digits}%} -> {self.after:.{digits}%} at T={self.temperature:g}, "
                f"{points(self.gain, digits)} points {interval(self.low, self.high, digits)}{shown}{more} "
                f"({self.games}, one seed)")


def points(gain: float, digits: int = 0) -> str:
    """Returns a difference of two success rates in percentage points, with its sign: `+19`, `-4`, `0`, `+0.5`."""
    rounded = round(100 * gain, digits)
    return f"{rounded:+.{digits}f}" if rounded else "0"


def interval(low: float, high: float, digits: int = 0) -> str:
    """Returns an interval of a difference in percentage points: `[12, 26]`, `[-0.2, 1.2]`."""
    ends = (round(100 * end, digits) + 0.0 for end in (low, high))  # + 0.0: no minus before a zero
    return f"[{', '.join(f'{end:.{digits}f}' for end in ends)}]"


def verdicts(evaluations: Evaluations) -> list[Verdict]:
    """Returns one verdict per temperature, in the order of play, or [] if nothing can be compared yet.

    It uses the held-out games. Before they are played, it uses the first and the last evaluation of the curve.
    `evaluations`: rows of evaluations.jsonl, as read_evaluations returns them.
    """
    return list(_heldout(evaluations)) or list(_curve(evaluations))


def _heldout(evaluations: Evaluations) -> Iterator[Verdict]:
    comparison = compare(evaluations)
    if comparison is None:
        return
    success = {(row.label, row.temperature): row for row in comparison.rows}
    played = after_rl(evaluations)
    for gain in comparison.gains:
        if gain.over == COLD and not gain.env:
            before, after = success[COLD, gain.temperature], success[TRAINED, gain.temperature]
            more = success.get((MORE, gain.temperature))
            yield Verdict(temperature=gain.temperature, before=before.success, after=after.success, gain=gain.gain,
                          low=gain.low, high=gain.high, more=None if more is None else more.success,
                          games=_games(number_of(after.games, "held-out game"), played[0]))


def _games(number: str, row: Mapping[str, Any]) -> str:
    """Returns which games an evaluation played: `256 held-out games of alfworld-gen, not of alfworld`."""
    env = row.get("env") or ""
    published = [name for one in env.split("+") if (name := stands_in_for(one))]
    return f"{number} of {env}, not of {' or '.join(published)}" if published else number


def _curve(evaluations: Evaluations) -> Iterator[Verdict]:
    rows = curve_of(evaluations)
    if len(rows) < 2 or rows[0]["temperature"] != rows[-1]["temperature"]:
        return
    first, last = rows[0], rows[-1]
    if paired := gain_of(first, last):
        gain, low, high = paired
        yield Verdict(temperature=last["temperature"], before=first["success_rate"], after=last["success_rate"],
                      gain=gain, low=low, high=high, more=None,
                      games=_games(f"{number_of(last['tasks'], 'game')} of the split {last['split']}", last)
                      + f", learner step {first['step']} to {last['step']}")


def next_commands(run: Path, evaluations: Evaluations) -> list[str]:
    """Returns useful commands after a run, with its real name and a task that it has played."""
    gagpo, name = program(), shlex.quote(str(run))
    task = next(iter(evaluations[-1]["success_by_task"]), None) if evaluations else None
    commands: Mapping[str, str] = {
        f"{gagpo} explore {name}": "find the step that lost an episode, in a browser",
        f"{gagpo} report {name}": "draw the figures and tables again",
        f"{gagpo} eval {name}": "measure the trained model on held-out games",
        f"{gagpo} export {name} {shlex.quote(f'{run.resolve().name}-model')}": "write it as a Hugging Face folder",
        **({f"{gagpo} play {shlex.quote(task)} --agent {name}": "watch it play"} if task else {}),
    }
    width = max((length for length in map(len, commands) if length <= ALIGNED), default=0)
    return [f"{command:<{width}}  # {what}" for command, what in commands.items()]
