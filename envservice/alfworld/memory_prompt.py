"""The compact prompt with a memory: what is held and treated, and where objects that the task names were seen.

The scripted player decides by these facts, and a few past actions do not tell them: without them a model that imitates
it has to guess, and one that has placed the first of two objects forgets where it saw the second.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from envservice.alfworld.memory import GameMemory, kind_of, recall
from envservice.alfworld.prompts import AlfworldCompactTemplate, task_of
from envservice.base import Outcome, Turn

_STATES = {"heat": "hot", "cool": "cool", "clean": "clean"}


class AlfworldMemoryTemplate(AlfworldCompactTemplate):
    """The lines of the compact prompt after two more: the object in hand, and the task's objects with their places."""

    name = "memory"

    def render(self, first: Outcome, turns: Sequence[Turn], now: Outcome) -> str:
        memory = recall(first, turns, now)
        task = task_of(first)
        return f"Held: {_held(memory)}\nFound: {_found(memory, task)}\n{super().render(first, turns, now)}"


def _held(memory: GameMemory) -> str:
    """Returns the object in hand with its states, such as `mug 1 hot`. A dash for nothing."""
    states = (_STATES[verb] for verb in sorted(memory.treated[memory.held]))
    return " ".join([memory.held, *states]) if memory.held else "-"


def _found(memory: GameMemory, task: str) -> str:
    """Returns the places where objects of the task's kinds lie, as `mug 1 in desk 1, mug 2 in shelf 1`, or a dash."""
    named = set(re.findall(r"\w+", task))
    return ", ".join(f"{thing} in {place}" for place, things in memory.contents.items() for thing in things
                     if kind_of(thing) in named) or "-"
