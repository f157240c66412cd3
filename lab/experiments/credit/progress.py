"""The progress view of an experiment: finished runs, and the last line of each run in progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from deploy.console.plain import ignoring_lost_output, print_line, printable
from services.amounts import span

KEEP_LINES = 12


class Shown(Protocol):
    """A run in progress."""

    name: str

    def tail(self, lines: int) -> list[str]:
        """Returns the last lines that it printed."""
        ...


class RunsProgress:
    """Shows a live view in a terminal, otherwise plain lines. `typical_s`: seconds of the runs finished before."""

    def __init__(self, total: int, *, done: int = 0, parallel: int = 1, typical_s: float | None = None,
                 console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console or Console()
        self._clock = clock
        self._started = clock()
        self._total, self._done, self._parallel = total, done, parallel
        self._took = [typical_s] if typical_s else []
        self._lines: list[str] = []
        self._running: Sequence[Shown] = ()
        self._live: Live | None = None

    def __enter__(self) -> RunsProgress:
        if self._console.is_terminal:
            self._live = Live(get_renderable=self.render, console=self._console, refresh_per_second=1)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            with ignoring_lost_output():
                self._live.stop()

    def note(self, text: str) -> None:
        """Prints a line with the time since the start."""
        line = f"[{span(self._clock() - self._started)}] {text}"
        self._lines = [*self._lines, line][-KEEP_LINES:]
        if self._live is None:
            print_line(self._console, line)

    def running(self, children: Sequence[Shown]) -> None:
        """Sets the runs in progress."""
        self._running = children

    def finished(self, name: str, seconds: float, result: str) -> None:
        """Shows that a run has finished."""
        self._done += 1
        self._took.append(seconds)
        self.note(f"{self._done}/{self._total} {name}: {result}, {span(seconds)}{self._left()}")

    def _left(self) -> str:
        if self._done >= self._total or not self._took:
            return ""
        each = sum(self._took) / len(self._took)
        return f"; about {span(each * (self._total - self._done) / self._parallel)} left"

    def render(self) -> Group:
        """Returns the live view."""
        head = Text(f"{self._done} of {self._total} runs{self._left()}", style="bold")
        lines = [Text(printable(line), style="dim") for line in self._lines]
        going = [Text(printable(f"{child.name}  {' '.join(child.tail(1))}"), no_wrap=True) for child in self._running]
        return Group(head, *lines, *going)
