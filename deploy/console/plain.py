"""Prints the progress of work, its rate and the time left. Commands with one result use StatusLines."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from services.amounts import rounded, span

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

REPLACED = "\N{REPLACEMENT CHARACTER}"


def printable(text: str) -> str:
    """Returns the text with all control characters except line ends and tabs replaced by U+FFFD."""
    if text.isprintable():
        return text
    return "".join(each if each in "\n\t" or each.isprintable() else REPLACED for each in text)


LOST = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""errno values of a full disk, and of a terminal that is gone."""
EVERY_S = 10.0
"""Seconds between two plain lines about the same work."""


@contextmanager
def ignoring_lost_output() -> Iterator[None]:
    """Lets a run continue if its lines cannot be printed: its log has the lines too. A pipe without a reader
    still ends the command."""
    try:
        yield
    except OSError as error:
        if error.errno not in LOST:
            raise


def print_line(console: Console, text: str) -> None:
    """Prints a permanent line."""
    with ignoring_lost_output():
        console.print(printable(text), markup=False, highlight=False, soft_wrap=True)


def answer_shares(row: Mapping[str, Any]) -> str:
    """Returns the shares of bad answers in a row of metrics.jsonl or evaluations.jsonl.

    `invalid 98.9%  inadmissible 0.0%  cut 92.6%`. Cut answers are shown from one in a hundred on. Rows of older
    versions lack some.
    """
    shares = {name: row.get(f"{name}_share") for name in ("invalid", "inadmissible", "cut")}
    return "  ".join(f"{name} {share:.1%}" for name, share in shares.items()
                     if share is not None and (name != "cut" or share >= 0.01))


class Pace:
    """Describes the progress of one task at a time: `heldout 40/256 games  3.1 games/s  about 70 s left`.

    Another name, total or unit begins a new task. The rate counts from the first finished piece, because loading before
    it is not part of the work.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._work: tuple[str, float, str] | None = None
        self._from = (0.0, 0.0)
        self._moved = False

    def at(self, what: str, done: float, total: float, unit: str) -> str:
        """Returns the line about task `what`, of which `done` of `total` pieces are finished."""
        now = self._clock()
        if self._work != (what, total, unit):
            self._work, self._from, self._moved = (what, total, unit), (now, done), False
        elif not self._moved and done > self._from[1]:
            self._from, self._moved = (now, done), True
        return f"{what} {rounded(done, 4)}/{rounded(total, 4)} {unit}{self._rate(now, done, total, unit)}"

    def _rate(self, now: float, done: float, total: float, unit: str) -> str:
        first, seconds = self._from[1], now - self._from[0]
        if done <= first or seconds <= 0:
            return ""
        rate = (done - first) / seconds
        shown = f"{rounded(rate)} {unit}/s" if rate >= 1 else f"{rounded(1 / rate)} s each"
        return f"  {shown}  about {span((total - done) / rate)} left" if done < total else f"  {shown}  {span(seconds)}"


class StatusLines:
    """Prints permanent lines and passing lines. A terminal shows only the latest passing line, with a spinner."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._pace = Pace(clock)
        self._said_at = -EVERY_S
        self._said = (0.0, 0.0)
        self._waits: tuple[str, float] = ("", 0.0)
        self._status: Status | None = None

    def __enter__(self) -> StatusLines:
        if self._console.is_terminal:
            self._status = self._console.status("")
            self._status.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self._status is not None:
            with ignoring_lost_output():
                self._status.stop()

    def note(self, text: str) -> None:
        """Prints a permanent line."""
        print_line(self._console, text)

    def passing(self, text: str) -> None:
        """Shows the current activity. Without a terminal it is a plain line."""
        if self._status is None:
            self.note(text)
        else:
            from rich.markup import escape

            self._status.update(escape(printable(text)))

    def waiting(self, text: str) -> None:
        """Shows what is awaited and for how long. Without a terminal it prints a line every ten seconds."""
        now = self._clock()
        if self._waits[0] != text:
            self._waits = (text, now)
        if self._status is not None or now - self._said_at >= EVERY_S:
            self._said_at = now
            self.passing(f"{text}  {span(now - self._waits[1])} so far")

    def at(self, what: str, done: float, total: float, unit: str, *, doing: str = "") -> None:
        """Shows how much of a given amount of work is done, and the current activity.

        Without a terminal it prints a line every ten seconds, and one for each piece if `doing` is given.
        """
        text, now = self._pace.at(what, done, total, unit), self._clock()
        news = doing and (done, total) != self._said
        if self._status is None and not news and now - self._said_at < EVERY_S:
            return
        self._said_at, self._said = now, (done, total)
        self.passing(f"{text}  {doing}" if doing else text)
