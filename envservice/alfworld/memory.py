"""The facts in ALFWorld's texts: the task, places of objects, the object in hand, and treated objects.

The scripted player decides by them, the prompts `memory` and `memory-chat` show them, and the analysis of lost episodes
takes from them how far an episode came.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from envservice.base import Outcome, Turn

_TASKS = (
    ("two", re.compile(r"(?:put|find) two (?P<obj>\w+)(?: in| and put them in) (?P<target>\w+)")),
    ("look", re.compile(r"(?:look at|examine the) (?P<obj>\w+) (?:under|with) the (?P<target>\w+)")),
    ("clean", re.compile(r"(?:put a clean|clean some) (?P<obj>\w+) (?:in|and put it in) (?P<target>\w+)")),
    ("heat", re.compile(r"(?:put a hot|heat some) (?P<obj>\w+) (?:in|and put it in) (?P<target>\w+)")),
    ("cool", re.compile(r"(?:put a cool|cool some) (?P<obj>\w+) (?:in|and put it in) (?P<target>\w+)")),
    ("pick", re.compile(r"put (?:a|some) (?P<obj>\w+) (?:in|on) (?P<target>\w+)")),
)
_LISTING = re.compile(r"(?:On the (\w+ \d+)|The (\w+ \d+) is open\. In it), you see ([^.]*)\.")
THING = re.compile(r"\ban? (\w+ \d+)")
"""An object or a receptacle in a listing."""
_TAKEN = re.compile(r"You pick up the (\w+ \d+) from the (\w+ \d+)\.")
_MOVED = re.compile(r"You move the (\w+ \d+) to the (\w+ \d+)\.")
_TREATED = re.compile(r"You (clean|heat|cool) the (\w+ \d+) using the \w+ \d+\.")


def parse_task(sentence: str) -> tuple[str, str, str]:
    """Reads type, object kind and target kind (for look, the lamp). Raises ValueError for an unknown sentence."""
    for kind, form in _TASKS:
        if match := form.match(sentence):
            return kind, match["obj"], match["target"]
    raise ValueError(f"not a task of ALFWorld: {sentence!r}")


def kind_of(name: str) -> str:
    """Returns the kind of an object, such as `mug` for `mug 2`."""
    return name.rpartition(" ")[0]


class GameMemory:
    """The facts that have been read so far."""

    def __init__(self, first: Outcome) -> None:
        starts = (action.removeprefix("go to ") for action in first.admissible_actions if action.startswith("go to "))
        self.receptacles = sorted(starts, key=lambda name: (kind_of(name), int(name.rpartition(" ")[2])))
        self.contents: dict[str, list[str]] = {}
        """Contents of the receptacles that were looked into, or that an object was put into."""
        self.held = ""
        self.origin: dict[str, str] = {}
        """The receptacle from which each object was last taken."""
        self.treated: dict[str, set[str]] = defaultdict(set)

    def read(self, observation: str) -> None:
        """Reads one observation, whatever action led to it."""
        for surface, box, listing in _LISTING.findall(observation):
            self.contents[surface or box] = THING.findall(listing)
        if match := _TAKEN.search(observation):
            thing, place = match.groups()
            self.held, self.origin[thing] = thing, place
            if thing in self.contents.get(place, ()):
                self.contents[place].remove(thing)
        elif match := _MOVED.search(observation):
            thing, place = match.groups()
            self.held = ""
            self.contents.setdefault(place, []).append(thing)
        elif match := _TREATED.search(observation):
            verb, thing = match.groups()
            self.treated[thing] -= {"heat", "cool"} if verb != "clean" else set()
            self.treated[thing].add(verb)

    def find(self, kind: str, *, outside: str = "") -> tuple[str, str] | None:
        """Finds an object of this kind with its place, except in receptacle `outside`."""
        for place, things in self.contents.items():
            for thing in things:
                if place != outside and kind_of(thing) == kind:
                    return thing, place
        return None

    def unseen(self) -> list[str]:
        """Returns the receptacles without known contents."""
        return [each for each in self.receptacles if each not in self.contents]


def recall(first: Outcome, turns: Sequence[Turn], now: Outcome) -> GameMemory:
    """Returns the facts in all outcomes, from the first one to the latest."""
    memory = GameMemory(first)
    for turn in turns:
        memory.read(turn.observation)
    memory.read(now.observation)
    return memory
