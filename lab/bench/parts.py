"""Progress of a bench whose parts differ in kind and length."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from deploy.console.plain import EVERY_S, StatusLines
from services.amounts import rounded, span


class Parts:
    """Shows work whose parts differ and may be silent for minutes: how many are done, which one runs, and for how long.

    It updates from a thread of its own. It shows no rate, because short parts say nothing about long ones.
    """

    def __init__(self, lines: StatusLines, what: str, *, every_s: float = EVERY_S,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._lines, self._what, self._every_s, self._clock = lines, what, every_s, clock
        self._text = ""
        self._began = self._said_at = clock()
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="parts", daemon=True)

    def __enter__(self) -> Parts:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def at(self, doing: str, done: float, total: float) -> None:
        """Shows the part that begins now."""
        with self._lock:
            self._text = f"{self._what} {rounded(done, 4)}/{rounded(total, 4)} parts  {doing}"
            self._say()

    def _tick(self) -> None:
        while not self._done.wait(self._every_s):
            with self._lock:
                if self._text and self._clock() - self._said_at >= self._every_s:
                    self._say()

    def _say(self) -> None:
        self._said_at = self._clock()
        elapsed = self._said_at - self._began
        self._lines.passing(f"{self._text}  {span(elapsed)} so far" if elapsed >= 1 else self._text)
