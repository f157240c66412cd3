"""Explains from an episode's texts why it was lost: how far it came, and the mistakes in its inadmissible actions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from envservice.alfworld.memory import THING, GameMemory, kind_of, parse_task
from envservice.alfworld.prompts import task_of
from envservice.base import Outcome
from envservice.spec import LostEpisode, LostTurn

_GO = re.compile(r"go to (\w+ \d+)")
_TAKE = re.compile(r"take (\w+ \d+) from (\w+ \d+)")
_HELD = re.compile(r"(?:move|heat|cool|clean) (\w+ \d+) (?:to|with) \w+ \d+")


def explain(turns: Sequence[LostTurn], final: str) -> LostEpisode:
    """Returns the stage that the episode reached, and its mistakes by kind. `final`: the last observation.

    Raises ValueError if the first observation holds no task.
    """
    start = turns[0].observation
    first = Outcome(observation=start, admissible_actions=[])
    kind, sought, target = parse_task(task_of(first))
    places = set(THING.findall(start.partition("Your task is to")[0]))
    memory, held, mistakes = GameMemory(first), set[str](), Counter[str]()
    saw = {sought: False, target: False}
    for turn in (*turns, LostTurn(observation=final, action="", admissible=True)):
        memory.read(turn.observation)
        held.add(memory.held)
        saw |= {name: True for name in saw if memory.find(name)}
        if not turn.admissible:
            mistakes[_mistake(turn.action, memory, places)] += 1
    right = [thing for thing in held if kind_of(thing) == sought]
    return LostEpisode(stage=_stage(kind, memory, right, saw, (sought, target)), mistakes=mistakes)


def _stage(kind: str, memory: GameMemory, held: Sequence[str], saw: Mapping[str, bool], goal: tuple[str, str]) -> str:
    """Returns the first part of the task that was not done. `held`: the objects of the right kind that were held."""
    sought, target = goal
    if not held:
        return "saw the object, never held it" if saw[sought] else "never found the object"
    if kind == "look":
        return "held it, never used the lamp" if saw[target] else "held it, never found the lamp"
    if kind in ("heat", "cool", "clean") and not any(kind in memory.treated[each] for each in held):
        return "held it, never treated it"
    placed = [thing for place, things in memory.contents.items() if kind_of(place) == target
              for thing in things if kind_of(thing) == sought]
    if kind != "two":
        return "had it ready, never placed it"
    if not placed:
        return "held one of two, placed none"
    return "placed one of two, did not bring the other"


def _mistake(action: str, memory: GameMemory, places: set[str]) -> str:
    """Returns the mistake in an inadmissible action, in the words of the report. `places`: the game's receptacles."""
    if match := _GO.fullmatch(action):
        place = match[1]
        if place in places:
            return "goes where it is"
        return "wrong number of a place" if kind_of(place) in map(kind_of, places) else "no such place"
    if match := _TAKE.fullmatch(action):
        thing, place = match.groups()
        if memory.held:
            return "takes with a full hand"
        there = memory.contents.get(place, [])
        if thing in there:
            return "takes from another place"
        return "wrong number of an object" if kind_of(thing) in map(kind_of, there) else "object is not there"
    if match := _HELD.fullmatch(action):
        if memory.held == match[1]:
            return "not possible here"
        return "wrong number of an object" if kind_of(memory.held) == kind_of(match[1]) else "object is not in hand"
    return "other"
