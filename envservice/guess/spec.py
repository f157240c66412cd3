"""The guessing game: a secret number from 1 to 7, three tries, and after each a hint.

A player that halves the remaining numbers wins every game, and one that ignores the hints wins at most three of seven.
So the first guesses matter although only the last one is rewarded. Prompts and answers are short, for a first run of a
small instruct model on CPUs.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from envservice.adapters.gymnasium import text_spec
from envservice.base import Outcome, ParsedAction, Turn, recent
from envservice.spec import Teacher

NUMBERS, TRIES = 7, 3
_ACTIONS = [str(number) for number in range(1, NUMBERS + 1)]
_HINT = re.compile(r"(\d+) is too (low|high)\.")
_NUMBER = re.compile(r"[0-9]+")


class GuessingGame:
    """One game. Its secret is drawn from the seed."""

    def reset(self, *, seed: int) -> tuple[str, dict[str, Any]]:
        self._secret, self._tries = random.Random(seed).randint(1, NUMBERS), 0
        self._low, self._high = 1, NUMBERS
        return f"Guess my number. Choose one of {', '.join(_ACTIONS)}.", self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._tries += 1
        over = self._tries == TRIES
        if action not in _ACTIONS:
            return "That was none of them.", 0.0, over, False, self._info()
        number = int(action)
        if number == self._secret:
            return "Right!", 1.0, True, False, self._info() | {"won": True}
        if number < self._secret:
            self._low, hint = max(self._low, number + 1), "low"
        else:
            self._high, hint = min(self._high, number - 1), "high"
        return f"{number} is too {hint}.", 0.0, over, False, self._info()

    def _info(self) -> dict[str, Any]:
        """Returns the info, whose state id has the numbers that are left and the tries that are gone."""
        return {"admissible_actions": _ACTIONS, "state_id": f"{self._low}-{self._high} after {self._tries}"}


class GuessTemplate:
    """One message with the rules and the last `history` hints. The first number in an answer is the guess, and the
    answer ends with its first sentence, because models of this size surround the number with words."""

    name, chat = "full", True

    def __init__(self, history: int) -> None:
        self.history = history

    def render(self, first: Outcome, turns: Sequence[Turn], now: Outcome) -> str:
        hints = [*(turn.observation for turn in turns[1:]), now.observation] if turns else []
        shown = hints[len(turns) - len(recent(turns, self.history)):]
        return "\n".join([first.observation, *shown, "Answer:"])

    def parse(self, text: str) -> ParsedAction:
        """An answer is valid if the first number in it is one of the game's."""
        match = _NUMBER.search(text)
        action = text.strip() if match is None else match[0]
        return ParsedAction(action=action, valid=action in _ACTIONS)


class Halver:
    """Guesses the middle of the numbers that the hints have left."""

    def __init__(self) -> None:
        self._low, self._high = 1, NUMBERS

    def act(self, now: Outcome) -> str:
        if match := _HINT.fullmatch(now.observation):
            number = int(match[1])
            if match[2] == "low":
                self._low = max(self._low, number + 1)
            else:
                self._high = min(self._high, number - 1)
        return str((self._low + self._high) // 2)


_GAME = text_spec(GuessingGame, name="guess", version="1", max_steps=TRIES, sizes=(1000, 100, 300),
                  prompts={"full": GuessTemplate})
SPEC = replace(_GAME, teacher=Teacher(player=lambda *_: Halver()), stops=(".",), says_unchanged=False)
