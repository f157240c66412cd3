"""A table of what happened and when."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Timeline:
    """Acts with their times. Each is printed as soon as it is over."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._rows: list[str] = []

    @contextmanager
    def act(self, what: str) -> Iterator[None]:
        """Times the block. It is in the table also if it failed."""
        began, ended = time.monotonic(), "failed"
        try:
            yield
            ended = f"{time.monotonic() - began:.1f} s"
        finally:
            self._add(what, ended)

    def note(self, what: str) -> None:
        self._add(what, "")

    def table(self) -> str:
        return "\n".join(("| at | what | took |", "|---|---|---|", *self._rows))

    def _add(self, what: str, took: str) -> None:
        self._rows.append(f"| {time.monotonic() - self._began:.0f} s | {what} | {took} |")
        print(self._rows[-1], flush=True)
