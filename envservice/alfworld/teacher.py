"""ALFWorld's demonstrations: the searcher as a Demonstrator, noise that mistakes numbers, games under other numbers."""

from __future__ import annotations

import random
import re

from envservice.alfworld.prompts import choices
from envservice.alfworld.renumbered import Renumbered
from envservice.alfworld.searcher import Searcher
from envservice.base import Outcome
from envservice.response_format import answer
from envservice.spec import Teacher
from services.config.tree import SftSection

_HIGHEST_NUMBER = 30
"""The largest number in a corrupted action."""


class AlfworldDemonstrator:
    """A Demonstrator that plays the searcher's moves. The subgoal of a move is the thought."""

    def __init__(self, first: Outcome, rng: random.Random, sft: SftSection) -> None:
        self._searcher = Searcher(first, jump=sft.jump, rng=rng)

    def act(self, now: Outcome) -> str:
        move = self._searcher.act(now)
        return answer(move.thought, move.action)


def disturb(action: str, now: Outcome, rng: random.Random) -> str:
    """Returns noise instead of `action`: any admissible action, or `action` with another number in it."""
    if rng.random() < 0.5:
        return rng.choice(choices(now))
    numbered = action if re.search(r"\d", action) else rng.choice([each for each in choices(now) if each[-1].isdigit()])
    while True:
        spot = rng.choice(list(re.finditer(r"\d+", numbered)))
        corrupted = f"{numbered[: spot.start()]}{rng.randint(1, _HIGHEST_NUMBER)}{numbered[spot.end() :]}"
        if corrupted not in now.admissible_actions:
            return corrupted


TEACHER = Teacher(
    player=AlfworldDemonstrator, disturb=disturb, disguise=lambda session, seed: Renumbered(session, seed=seed),
    names="numbered")
