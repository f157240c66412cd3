"""ALFWorld's demonstrations: a scripted player, mistakes as noise, games under other numbers.

The player knows only what it has read, and never the walkthrough. It remembers the contents of receptacles that it has
looked into. It searches the others, first those where such an object is most likely found for the steps that a look
costs. Its task has four parts: find, take, treat, place.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cache

from envservice.alfworld.generator_rooms import tables
from envservice.alfworld.memory import GameMemory, kind_of, parse_task
from envservice.alfworld.prompts import choices, task_of
from envservice.base import Outcome, Session
from envservice.spec import Teacher
from envservice.text.response_format import answer
from services.config.tree import SftSection
from services.seeds import seed_for

_MACHINES = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}


@dataclass(frozen=True, slots=True)
class SearcherMove:
    """An action, with its subgoal in about three words."""

    thought: str
    action: str


@cache
def usual_places(kind: str) -> dict[str, float]:
    """Maps each kind of receptacle to how often such an object lies in one: the percentage of such objects that lie
    there, times the probability that a room has any, summed over the kinds of room."""
    places: dict[str, float] = defaultdict(float)
    for room in tables().rooms.values():
        for name, usual in room["objects"].items():
            if name.lower() == kind:
                for receptacle, weight in usual["at"].items():
                    places[receptacle.lower()] += usual["present"] * weight
    return dict(places)


class Searcher:
    """Plays one episode. `jump` is the probability that the next place to search is a random one."""

    def __init__(self, first: Outcome, *, jump: float, rng: random.Random) -> None:
        self.type, self.kind, self.target = parse_task(task_of(first))
        self.memory = GameMemory(first)
        self.jump = jump
        self.rng = rng
        self._sought = ""

    def act(self, now: Outcome) -> SearcherMove:
        """Reads the latest outcome and decides. Call it once per step, also for steps of noise."""
        self.memory.read(now.observation)
        held = self.memory.held
        if not held:
            return self._fetch(now)
        if kind_of(held) != self.kind:
            return SearcherMove(f"drop {kind_of(held)}", self._drop(now, held))
        if self.type in _MACHINES and self.type not in self.memory.treated[held]:
            return SearcherMove(f"{self.type} {self.kind}", self._treat(now, held))
        if self.type == "look":
            return self._light(now)
        place = self._target()
        return SearcherMove(f"put {self.kind} in {self.target}", self._at(now, place, f"move {held} to {place}"))

    def _fetch(self, now: Outcome) -> SearcherMove:
        placed = self._target() if self.type in ("pick", "two") else ""
        seen = self.memory.find(self.kind, outside=placed)
        if not seen:
            return SearcherMove(f"find {self.kind}", self._search(now, self.kind))
        thing, place = seen
        return SearcherMove(f"take {self.kind}", self._at(now, place, f"take {thing} from {place}"))

    def _drop(self, now: Outcome, held: str) -> str:
        here = [action for action in now.admissible_actions if action.startswith(f"move {held} to ")]
        place = self.memory.origin[held]
        return here[0] if here else self._at(now, place, f"move {held} to {place}")

    def _treat(self, now: Outcome, held: str) -> str:
        machines = [each for each in self.memory.receptacles if kind_of(each) == _MACHINES[self.type]]
        if not machines:
            return "look"
        return self._at(now, machines[0], f"{self.type} {held} with {machines[0]}")

    def _light(self, now: Outcome) -> SearcherMove:
        lamp = self.memory.find(self.target)
        if not lamp:
            return SearcherMove(f"find {self.target}", self._search(now, self.target))
        return SearcherMove(f"use {self.target}", self._at(now, lamp[1], f"use {lamp[0]}"))

    def _target(self) -> str:
        """Chooses the receptacle to fill: one that holds such an object already, else one that was looked into, else
        any of its kind. Returns "" if there is none."""
        fitting = [each for each in self.memory.receptacles if kind_of(each) == self.target]
        holding = [
            each for each in fitting
            if any(kind_of(thing) == self.kind for thing in self.memory.contents.get(each, ()))
        ]
        looked = [each for each in fitting if each in self.memory.contents]
        return next(iter(holding or looked or fitting), "")

    def _search(self, now: Outcome, kind: str) -> str:
        """Returns the next action of a search, which stays with one receptacle until its contents have been read."""
        unseen = self.memory.unseen()
        if not unseen:
            # All receptacles were looked into, so the object was misread or is out of reach.
            return self.rng.choice([action for action in choices(now) if action.startswith("go to ")] or ["look"])
        if self._sought not in unseen:
            self._sought = self._next(unseen, kind)
        return self._at(now, self._sought, f"open {self._sought}")

    def _next(self, unseen: list[str], kind: str) -> str:
        if self.rng.random() < self.jump:
            return self.rng.choice(unseen)
        counts: dict[str, int] = defaultdict(int)
        for each in self.memory.receptacles:
            counts[kind_of(each)] += 1
        places = usual_places(kind)
        openable = {each.lower() for each in tables().openable}

        def worth(name: str) -> float:
            place = kind_of(name)
            if place == self.target and self.type in ("pick", "two"):
                return -1.0  # an object that is there already needs no fetching
            return places.get(place, 0.0) / counts[place] / (2 if place in openable else 1)

        return max(unseen, key=worth)

    def _at(self, now: Outcome, place: str, action: str) -> str:
        """Returns `action` if it is possible, else the next step towards it at `place`."""
        ways = (action, f"go to {place}", f"open {place}", f"examine {place}")
        return next((each for each in ways if each in now.admissible_actions), "look")


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
    """Returns noise instead of `action`, of one of three kinds, equally likely: admissible, misnumbered, or in vain."""
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
    """Returns `go to` the place where the agent stands, or `take` of an object of the task's kind that is not there.

    Without demonstrations that show a way out, agents repeat these actions to the end of a lost episode
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
