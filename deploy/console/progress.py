"""The view of a training run: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from deploy.console.plain import EVERY_S, Pace, answer_shares, ignoring_lost_output, print_line, printable
from services.amounts import number_of, rounded, span
from services.telemetry.evaluations import env_scores, title_of

BARS = "▁▂▃▄▅▆▇█"
MOST_BARS = 40
KEEP_NOTES = 6


def sparkline(values: list[float]) -> str:
    """Draws the last rates in [0, 1] as a row of at most MOST_BARS bars."""
    return "".join(BARS[min(7, max(0, int(v * 8)))] for v in values[-MOST_BARS:])


def shown(value: float | None, form: str) -> str:
    """Formats a number of metrics.jsonl. null stands for a number that was not finite."""
    return "not finite" if value is None else format(value, form)


def as_score(summary: Mapping[str, Any]) -> str:
    """Returns `, score 0.62` if the environment has a score of its own."""
    score = summary.get("task_score")
    return "" if score is None else f", score {rounded(score)}"


def left_out(summary: Mapping[str, Any]) -> str:
    """Returns `; 3 could not be played` if faults took games from an evaluation."""
    return f"; {summary['dropped']} could not be played" if summary.get("dropped") else ""


def _clock(seconds: float) -> str:
    """Returns minutes and whole seconds, `15:59`. Seconds are rounded down, because rounding up could show `15:60`."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes:02d}:{rest:02d}"


class ProgressView:
    """Shows a run. Callers pass plain values; only this class knows how they are drawn."""

    def __init__(self, title: str, steps: int, *, console: Console | None = None,
                 record: Callable[[str], object] = lambda _: None,
                 on_stage: Callable[[str, str], object] = lambda *_: None,
                 clock: Callable[[], float] = time.monotonic) -> None:
        """`record` gets every line, for the run's log. `on_stage` gets stage and activity, for `gagpo status`."""
        self._console = console or Console()
        self._record = record
        self._on_stage = on_stage
        self._title = title
        self._steps = steps
        self._clock = clock
        self._started = clock()
        self._stage = "starting"
        self._stage_at = self._started
        self._stages = [0, 0]
        """Number of stages that have begun, and of all stages."""
        self._final_games, self._control = 0, False
        self._playing: tuple[str, float] = ("", 0.0)
        """Label of the evaluation that is played, and when it was first shown."""
        self._game_s: float | None = None
        """Seconds per game, from the last evaluation."""
        self._step = 0
        self._last: dict[str, Any] = {}
        self._success: list[float] = []
        self._evaluations: list[tuple[int, float, float, float]] = []
        self._notes: list[str] = []
        self._warnings: dict[str, str] = {}
        self._arrivals: list[tuple[int, float]] = []
        self._pace = Pace(clock)
        self._passing = ""
        self._said_at = -EVERY_S
        self._live: Live | None = None

    def __enter__(self) -> ProgressView:
        if self._console.is_terminal:
            self._live = Live(get_renderable=self.render, console=self._console, refresh_per_second=2)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            with ignoring_lost_output():
                self._live.stop()

    def stage(self, text: str) -> None:
        """Shows that a new stage of the run begins."""
        self._stage, self._stage_at, self._passing = text, self._clock(), ""
        self._stages[0] += 1
        self._on_stage(text, "")
        self._say(self._of_all() + text)

    def expect(self, stages: int, *, games: int = 0, control: bool = False) -> None:
        """Sets the number of stages still to come, and the work after RL: how many games are played, and whether the
        cold start is trained for as long as RL took (`control`)."""
        self._stages[1] = self._stages[0] + stages
        self._final_games, self._control = games, control

    def _of_all(self) -> str:
        begun, all_of = self._stages
        return f"stage {begun} of {all_of}: " if begun <= all_of else ""

    def resumed(self, step: int) -> None:
        """Shows the learner step from which the run continues."""
        self._step = step
        self.note(f"continues after learner step {step} of {self._steps}" if step else
                  "continues from the start: no learner step is kept yet")

    def note(self, text: str) -> None:
        """Shows a permanent line."""
        self._notes = [*self._notes, text][-KEEP_NOTES:]
        self._say(text)

    def warn(self, warnings: Mapping[str, str]) -> None:
        """Shows the warnings that hold now, by rule. Each is shown once, and again after it was gone."""
        new = [text for rule, text in warnings.items() if rule not in self._warnings]
        self._warnings = dict(warnings)
        for text in new:
            self._say(f"warning: {text}")

    def passing(self, text: str) -> None:
        """Shows the current activity, until the next one."""
        self._passing = text
        self._on_stage(self._stage, text)
        if self._live is None:
            self._say(text)

    def _passed(self) -> None:
        self._passing = ""
        self._on_stage(self._stage, "")

    def waits(self, text: str) -> None:
        """Shows which service or folder the run waits for. An empty text: it continues."""
        self._passing = text
        self._on_stage(self._stage, text)
        self._say(text or "continues")

    def waiting(self, text: str) -> None:
        """Shows what is awaited and for how long. Without a terminal it prints a line after ten silent seconds."""
        waited = self._clock() - self._stage_at
        if self._live is not None or self._clock() - self._said_at >= EVERY_S:
            self.passing(f"{text}  {span(waited)} so far")

    def playing(self, label: str, done: int, total: int) -> None:
        """Shows the progress of an evaluation, without a terminal every ten seconds. `evaluation` shows its result."""
        if self._playing[0] != label:
            self._playing = (label, self._clock())
        text, now = self._pace.at(title_of(label) + ":", done, total, "games"), self._clock()
        if self._live is not None or (done < total and now - self._said_at >= EVERY_S):
            self.passing(text)

    def step(self, metrics: dict[str, Any]) -> None:
        """Shows one line of metrics.jsonl."""
        self._last, self._step = metrics, int(metrics["step"])
        self._passed()
        self._success.append(float(metrics["success_rate"]))
        self._arrivals.append((self._step, self._clock()))
        seconds = sum(v for k, v in metrics.items() if k.startswith("seconds/"))
        self._say(
            f"step {metrics['step']:>4}/{self._steps}  success {metrics['success_rate']:6.1%}  "
            f"length {metrics['episode_length']:5.1f}  {answer_shares(metrics)}  "
            f"loss {shown(metrics['loss/policy'], '+.4f')}  grad {shown(metrics['grad_norm'], '.2f')}  {seconds:5.1f} s"
            + self._left()
        )

    def _pace_of_steps(self) -> float | None:
        """Returns the mean seconds from one step to the next, including evaluations. None before the second step.

        The time counts from the end of the first step, which also waited for the samplers to load.
        """
        (first, began), (last, now) = (self._arrivals[0], self._arrivals[-1]) if self._arrivals else ((0, 0.0),) * 2
        return (now - began) / (last - first) if last > first and now > began else None

    def _left(self) -> str:
        """Returns the time that is left of RL, and the time to the end if the work after RL can be estimated."""
        left, pace = self._steps - self._step, self._pace_of_steps()
        if not pace:
            return ""
        after = self._after_rl(pace)
        if left <= 0:
            return f"  RL is done, about {span(after)} to the end" if after else ""
        end = f", {span(left * pace + after)} to the end" if after else ""
        return f"  about {span(left * pace)} of RL left{end}"

    def _after_rl(self, pace: float) -> float | None:
        """Returns the seconds of the work after RL; None if there is none or no game has been played yet."""
        if self._final_games and self._game_s is None:
            return None
        return self._final_games * (self._game_s or 0.0) + (self._steps * pace if self._control else 0.0) or None

    def evaluation(self, summary: dict[str, Any]) -> None:
        """Shows one line of evaluations.jsonl."""
        self._passed()
        label, began = self._playing
        if label == summary["label"]:
            self._game_s = (self._clock() - began) / max(1, summary["tasks"])
        self._evaluations.append((summary["step"], summary["success_rate"],
                                  summary["success_low"], summary["success_high"]))
        self._say(
            f"{title_of(summary['label'])}  T={summary['temperature']:g}  {summary['success_rate']:6.1%} "
            f"[{summary['success_low']:.1%}, {summary['success_high']:.1%}] "
            f"on {number_of(summary['tasks'], 'game')} of {summary['split']}{as_score(summary)}{left_out(summary)}  "
            f"{answer_shares(summary)}".rstrip()
        )
        for text in env_scores(summary):
            self._say(f"  {text}")

    def _say(self, text: str) -> None:
        self._said_at = self._clock()
        self._record(text)
        if self._live is None:
            print_line(self._console, f"[{_clock(self._said_at - self._started)}] {text}")

    def render(self) -> Group:
        """Returns the live view."""
        elapsed = self._clock() - self._started
        head = Text.assemble((self._title, "bold"), f"   {_clock(elapsed)}   {self._of_all()}{self._stage} "
                             f"({span(self._clock() - self._stage_at)})")
        table = Table.grid(padding=(0, 2))
        pace = self._pace_of_steps()
        rate = f"   {rounded(pace)} s each{self._left()}" if pace else ""
        table.add_row("step", f"{self._step} / {self._steps}{rate}")
        if self._passing:
            table.add_row("now", Text(printable(self._passing)))
        if self._last:
            table.add_row("success", f"{self._last['success_rate']:.1%}   {sparkline(self._success)}")
            table.add_row("length", f"{self._last['episode_length']:.1f} turns")
            table.add_row("answers", answer_shares(self._last))
            table.add_row("policy loss", shown(self._last["loss/policy"], "+.4f"))
            table.add_row("gradient norm", shown(self._last["grad_norm"], ".2f"))
        for at, rate, low, high in self._evaluations[-KEEP_NOTES:]:
            table.add_row(f"evaluation @{at}", f"{rate:.1%}  [{low:.1%}, {high:.1%}]")
        bar = ProgressBar(total=self._steps, completed=self._step, width=60)
        return Group(head, bar, table, *[Text(printable(f"warning: {text}"), style="yellow")
                                         for text in self._warnings.values()],
                     *[Text(printable(note), style="dim") for note in self._notes])
