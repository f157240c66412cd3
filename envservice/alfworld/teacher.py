"""ALFWorld's demonstrations: the searcher as a Demonstrator, mistakes as noise, games under other numbers."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from functools import cache

from envservice.alfworld.memory import GameMemory
from envservice.alfworld.prompts import choices, task_of
from envservice.alfworld.searcher import Searcher, parse_task
from envservice.base import Outcome, Session
from envservice.spec import Teacher
from envservice.text.response_format import answer
from services.config.tree import SftSection
from services.seeds import seed_for

# A game with other numbers on its objects, for demonstrations in which only copying gives the right number.
#
# In most games the first mug is `mug 1`, so a small model learns to answer 1 instead of reading. Receptacles keep their
# numbers, and with them their order in lists.

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
            match[1] for action in first.admissible_actions if (match := re.fullmatch(r"go to (\w+) \d+", action))}
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

        def number(match: re.Match[str]) -> str:
            kind, old = match.groups()
            return match[0] if kind in self._receptacles else f"{kind} {table(kind).get(old, old)}"

        return _NUMBERED.sub(number, text)


def _permutation(seed: int, kind: str) -> dict[str, str]:
    numbers = [str(number) for number in range(1, HIGHEST + 1)]
    return dict(zip(numbers, random.Random(seed_for(seed, kind)).sample(numbers, len(numbers)), strict=True))


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
