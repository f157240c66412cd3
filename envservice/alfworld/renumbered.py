"""A game with other numbers on its objects, for demonstrations in which only copying gives the right number.

In most games the first mug is `mug 1`, so a small model learns to answer 1 instead of reading. Receptacles keep their
numbers, and with them their order in lists.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace
from functools import cache

from envservice.base import Outcome, Session
from services.seeds import seed_for

_NUMBERED = re.compile(r"\b([a-z]+) (\d+)\b")
HIGHEST = 6
"""Numbers 1 to 6 are permuted for each kind of object. There are rarely more of a kind."""


class Renumbered:
    """A session that reads and writes permuted object numbers."""

    def __init__(self, session: Session, *, seed: int) -> None:
        self._session = session
        self._receptacles: set[str] = set()
        self._shown = cache(lambda kind: _permutation(seed, kind))
        self._real = cache(lambda kind: {new: old for old, new in self._shown(kind).items()})

    def reset(self) -> Outcome:
        first = self._session.reset()
        self._receptacles = {
            found[1] for action in first.admissible_actions if (found := re.fullmatch(r"go to (\w+) \d+", action))}
        return self._disguise(first)

    def step(self, action: str) -> Outcome:
        return self._disguise(self._session.step(self._rename(action, real=True)))

    def _disguise(self, outcome: Outcome) -> Outcome:
        return replace(
            outcome,
            observation=self._rename(outcome.observation),
            admissible_actions=sorted(self._rename(action) for action in outcome.admissible_actions),
        )

    def _rename(self, text: str, *, real: bool = False) -> str:
        table = self._real if real else self._shown

        def number(found: re.Match[str]) -> str:
            kind, old = found.groups()
            return found[0] if kind in self._receptacles else f"{kind} {table(kind).get(old, old)}"

        return _NUMBERED.sub(number, text)


def _permutation(seed: int, kind: str) -> dict[str, str]:
    numbers = [str(number) for number in range(1, HIGHEST + 1)]
    return dict(zip(numbers, random.Random(seed_for(seed, kind)).sample(numbers, len(numbers)), strict=True))
