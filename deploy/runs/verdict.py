"""The verdict on a run: the gain of training in one sentence per temperature, and the next commands to copy."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.runs.comparison import after_rl, compare
from envservice.registry import stands_in_for
from services.amounts import number_of
from services.process.packages import program
from services.statistics import paired_gain
from services.telemetry.evaluation_labels import COLD, MORE, TRAINED, curve_of

Evaluations = Sequence[dict[str, Any]]
NARROW = 0.05
"""Width of an interval below which whole points would hide on which side of 0 it lies."""
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
    """The games that were played, for example `256 held-out games`, and what they are not: ones of a published
    environment that they stand in for."""

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
        if gain.over == COLD:
            before, after = success[COLD, gain.temperature], success[TRAINED, gain.temperature]
            more = success.get((MORE, gain.temperature))
            yield Verdict(temperature=gain.temperature, before=before.success, after=after.success, gain=gain.gain,
                          low=gain.low, high=gain.high, more=None if more is None else more.success,
                          games=_games(number_of(after.games, "held-out game"), played[0]))


def _games(number: str, row: Mapping[str, Any]) -> str:
    """Returns which games an evaluation played: `256 held-out games of alfworld-gen, not of alfworld`."""
    env = row.get("env") or ""
    published = stands_in_for(env)
    return f"{number} of {env}, not of {published}" if published else number


def _curve(evaluations: Evaluations) -> Iterator[Verdict]:
    rows = curve_of(evaluations)
    if len(rows) < 2 or rows[0]["temperature"] != rows[-1]["temperature"]:
        return
    first, last = rows[0], rows[-1]
    both = first["success_by_task"].keys() & last["success_by_task"].keys()
    if both:
        gain, low, high = paired_gain(*({task: row["success_by_task"][task] for task in both} for row in (first, last)))
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
