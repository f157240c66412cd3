"""ScienceWorld's demonstrations: gold paths, with looks around as noise.

A gold path is the simulator's own solution, found with all that it knows of the world. What it shows is which actions
win, not how one could have known: imitating it teaches the grammar and the usual orders, at most.
"""

from __future__ import annotations

import random

from envservice.base import Outcome
from envservice.response_format import answer
from envservice.scienceworld.solver import gold_path
from envservice.spec import Teacher
from services.config.tree import SftSection

NOISE: dict[str, tuple[str, ...]] = {
    "look around": ("This room is called", "This outside location is called"), "inventory": ("In your inventory",)}
"""Actions that change nothing, and how their answers begin: after any other a gold path would lead elsewhere."""
_THOUGHT = "go on"
"""The simulator gives no reasons."""


class ScienceworldDemonstrator:
    """Gives the actions of a gold path one after the other, each until it has been taken."""

    def __init__(self, first: Outcome, rng: random.Random, sft: SftSection) -> None:
        del rng, sft  # nothing in it is left to chance
        self._path = gold_path(str(first.info["task_id"]), str(first.info["simplifications"]))
        self._next = -1

    def act(self, now: Outcome) -> str:
        if self._next < 0 or not self._was_noise(now):
            self._next += 1
        return answer(_THOUGHT, self._action())

    def _action(self) -> str:
        return self._path[self._next] if self._next < len(self._path) else "look around"

    def _was_noise(self, now: Outcome) -> bool:
        return any(now.observation.startswith(begins) for action, begins in NOISE.items() if action != self._action())


def disturb(action: str, now: Outcome, rng: random.Random) -> str:
    """In place of `action`: a look that changes nothing."""
    del action, now
    return rng.choice(list(NOISE))


TEACHER = Teacher(player=ScienceworldDemonstrator, disturb=disturb)
