"""The teacher of the cold start: a scripted player that knows only what it has read, and never the walkthrough.

It remembers the receptacles that it has looked into, with their contents. It searches the others first where such an
object usually lies, per step of search. Its task has four parts: find, take, treat, place.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cache

from envservice.alfworld.generator_rooms import tables
from envservice.alfworld.memory import GameMemory, kind_of
from envservice.alfworld.prompts import choices, task_of
from envservice.base import Outcome

_TASKS = (
    ("two", re.compile(r"(?:put|find) two (?P<obj>\w+)(?: in| and put them in) (?P<target>\w+)")),
    ("look", re.compile(r"(?:look at|examine the) (?P<obj>\w+) (?:under|with) the (?P<target>\w+)")),
    ("clean", re.compile(r"(?:put a clean|clean some) (?P<obj>\w+) (?:in|and put it in) (?P<target>\w+)")),
    ("heat", re.compile(r"(?:put a hot|heat some) (?P<obj>\w+) (?:in|and put it in) (?P<target>\w+)")),
    ("cool", re.compile(r"(?:put a cool|cool some) (?P<obj>\w+) (?:in|and put it in) (?P<target>\w+)")),
    ("pick", re.compile(r"put (?:a|some) (?P<obj>\w+) (?:in|on) (?P<target>\w+)")),
)
_MACHINES = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}


@dataclass(frozen=True, slots=True)
class SearcherMove:
    """An action, with its subgoal in about three words."""

    thought: str
    action: str


@cache
def usual_places(kind: str) -> dict[str, float]:
    """Maps each kind of receptacle to the mean number of such objects in all of them, over rooms that have any."""
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
        seen = self.memory.known(self.kind, outside=placed)
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
        lamp = self.memory.known(self.target)
        if not lamp:
            return SearcherMove(f"find {self.target}", self._search(now, self.target))
        return SearcherMove(f"use {self.target}", self._at(now, lamp[1], f"use {lamp[0]}"))

    def _target(self) -> str:
        """Chooses the receptacle to fill: one that holds such an object already, else one that was looked into."""
        fitting = [each for each in self.memory.receptacles if kind_of(each) == self.target]
        holding = [
            each for each in fitting
            if any(kind_of(thing) == self.kind for thing in self.memory.contents.get(each, ()))
        ]
        looked = [each for each in fitting if each in self.memory.contents]
        return next(iter(holding or looked or fitting), "")

    def _search(self, now: Outcome, kind: str) -> str:
        """Stays with one receptacle until its contents have been read."""
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


def parse_task(sentence: str) -> tuple[str, str, str]:
    """Reads type, object kind and target kind (for look, the lamp). Raises ValueError for an unknown sentence."""
    for kind, form in _TASKS:
        if match := form.match(sentence):
            return kind, match["obj"], match["target"]
    raise ValueError(f"not a task of ALFWorld: {sentence!r}")
