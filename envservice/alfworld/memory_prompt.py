"""The compact prompt with a memory: what is held and treated, and where objects of the task were seen or placed.

The scripted player decides by these facts, and a few past actions do not tell them: without them a model that imitates
it has to guess, and one that has placed the first of two objects forgets where it saw the second, or takes the first
out again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from envservice.alfworld.memory import GameMemory, kind_of, recall
from envservice.alfworld.prompts import AlfworldCompactTemplate, task_of
from envservice.base import Outcome, Turn

_FORM = "Answer with <think>a few words</think><action>one action</action>."
_STATES = {"heat": "hot", "cool": "cool", "clean": "clean"}


class AlfworldMemoryTemplate(AlfworldCompactTemplate):
    """The compact prompt after three lines: the object in hand, the task's objects still to bring, and those placed."""

    name = "memory"

    def render(self, first: Outcome, turns: Sequence[Turn], now: Outcome) -> str:
        memory = recall(first, turns, now)
        seen, placed = _objects(memory, task_of(first))
        return f"Held: {_held(memory)}\nFound: {seen}\nPlaced: {placed}\n{super().render(first, turns, now)}"


class AlfworldMemoryChatTemplate(AlfworldMemoryTemplate):
    """The same as one user message that names the form of answers, for instruct models."""

    name = "memory-chat"
    chat = True

    def render(self, first: Outcome, turns: Sequence[Turn], now: Outcome) -> str:
        return super().render(first, turns, now) + _FORM


def _held(memory: GameMemory) -> str:
    """Returns the object in hand with its states, such as `mug 1 hot`. A dash for nothing."""
    states = (_STATES[verb] for verb in sorted(memory.treated[memory.held]))
    return " ".join([memory.held, *states]) if memory.held else "-"


def _objects(memory: GameMemory, task: str) -> tuple[str, str]:
    """Returns where objects of the task's kinds lie, as `mug 1 in desk 1, mug 2 in shelf 1` or a dash, in two lists.

    The second has those in a receptacle of a kind that the task names, treated as it wants them: they stay there.
    """
    named = set(re.findall(r"\w+", task.lower()))
    wanted = {verb for verb, state in _STATES.items() if {verb, state} & named}
    seen, placed = [], []
    for place, things in memory.contents.items():
        for thing in things:
            if kind_of(thing) in named:
                done = kind_of(place) in named and wanted <= memory.treated[thing]
                (placed if done else seen).append(f"{thing} in {place}")
    return ", ".join(seen) or "-", ", ".join(placed) or "-"
