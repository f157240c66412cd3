"""ALFWorld's demonstrations: the searcher as a Demonstrator, mistakes as noise, games under other numbers."""

from __future__ import annotations

import random
import re

from envservice.alfworld.memory import GameMemory
from envservice.alfworld.prompts import choices, task_of
from envservice.alfworld.renumbered import HIGHEST, Renumbered
from envservice.alfworld.searcher import Searcher, parse_task
from envservice.base import Outcome
from envservice.spec import Teacher
from envservice.text.response_format import answer
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


def disturb(action: str, first: Outcome, now: Outcome, rng: random.Random) -> str:
    """Returns noise instead of `action`, of three kinds alike: admissible, with a wrong number, or in vain."""
    draw = rng.choice((_admissible, _misnumbered, _in_vain))
    return draw(action, first, now, rng)


def _admissible(_action: str, _first: Outcome, now: Outcome, rng: random.Random) -> str:
    return rng.choice(choices(now))


def _misnumbered(action: str, _first: Outcome, now: Outcome, rng: random.Random) -> str:
    numbered = action if re.search(r"\d", action) else rng.choice([each for each in choices(now) if each[-1].isdigit()])
    while True:
        spot = rng.choice(list(re.finditer(r"\d+", numbered)))
        corrupted = f"{numbered[: spot.start()]}{rng.randint(1, _HIGHEST_NUMBER)}{numbered[spot.end() :]}"
        if corrupted not in now.admissible_actions:
            return corrupted


def _in_vain(action: str, first: Outcome, now: Outcome, rng: random.Random) -> str:
    """Returns a go to where the agent stands, or a take of an object of the task's kind where none is.

    Agents repeat these to the end of a lost episode if no demonstration shows a way out
    (lab/records/reproduction.md, "The best agent").
    """
    possible = set(now.admissible_actions)
    here = [each for each in GameMemory(first).receptacles if f"go to {each}" not in possible]
    if not here:
        return _misnumbered(action, first, now, rng)  # at the start it stands nowhere
    place, (_, kind, _) = here[0], parse_task(task_of(first))
    go, takes = f"go to {place}", [f"take {kind} {number} from {place}" for number in range(1, HIGHEST + 1)]
    return rng.choice((go, rng.choice([each for each in takes if each not in possible] or [go])))


TEACHER = Teacher(
    player=AlfworldDemonstrator, disturb=disturb, disguise=lambda session, seed: Renumbered(session, seed=seed),
    names="numbered")
