"""The lines of the self-test's table."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from services.errors import in_short


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One measurement. `passed` is None if there is no aim on this machine."""

    name: str
    value: str
    """The measured value, with its unit."""
    aim: str = ""
    passed: bool | None = None

    def __str__(self) -> str:
        verdict = {True: "pass", False: "FAIL", None: "-"}[self.passed]
        return f"{verdict:<5}{self.name:<42}{self.value:<46}{self.aim}".rstrip()


def attempt(name: str, check: Callable[[], Iterable[Line]]) -> Iterator[Line]:
    """Yields the lines of one check. If it raises, one line with the error follows the lines so far."""
    try:
        yield from check()
    except Exception as error:  # the other checks say what still works
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename.rpartition('/')[2]}:{last.lineno}"
        yield Line(name=name, value=f"{in_short(error)[:160]} ({where})", passed=False)
