"""The EnvironmentSpec of ScienceWorld."""

from __future__ import annotations

import random
from collections.abc import Iterator

from envservice.base import Environment, Outcome
from envservice.scienceworld import installation
from envservice.scienceworld.meta_prompt import ScienceworldCompactMetaTemplate, ScienceworldMetaTemplate
from envservice.scienceworld.prompts import ScienceworldCompactTemplate, ScienceworldFullTemplate
from envservice.scienceworld.simulator import MEMORY_BYTES
from envservice.scienceworld.solver import gold_path
from envservice.spec import EnvironmentSpec, Teacher
from envservice.text.response_format import answer
from services.config.tree import EnvSection, SftSection
from services.errors import UserError
from services.findings import Finding

# ScienceWorld's demonstrations: gold paths, with looks around as noise.
#
# A gold path is the simulator's own solution, which it finds by its knowledge of the world. It shows the actions that
# win, but not how a player could know them. Imitation teaches the grammar and the usual orders at most.

NOISE: dict[str, tuple[str, ...]] = {
    "look around": ("This room is called", "This outside location is called"), "inventory": ("In your inventory",)}
"""Actions that change nothing, with the first words of their answers. After any other action a gold path would fail."""
_THOUGHT = "go on"
"""The simulator gives no reasons."""


class ScienceworldDemonstrator:
    """Plays the actions of a gold path in order. It repeats each one until it was taken."""

    def __init__(self, first: Outcome, rng: random.Random, sft: SftSection) -> None:
        del rng, sft  # its play has no chance
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


def disturb(action: str, first: Outcome, now: Outcome, rng: random.Random) -> str:
    """Returns a look that changes nothing, to be taken instead of `action`."""
    del action, first, now
    return rng.choice(list(NOISE))


TEACHER = Teacher(player=ScienceworldDemonstrator, disturb=disturb)


def open_environment(env: EnvSection) -> Environment:
    """Opens the environment, and starts neither simulator nor Java. Raises UserError if one is missing."""
    from envservice.scienceworld.environment import ScienceworldEnvironment

    return ScienceworldEnvironment(env.scienceworld)


def describe(env: EnvSection) -> str:
    """Names the tasks and their simplifications in one line."""
    chosen = env.scienceworld
    simpler = ", ".join(chosen.simplifications) or "nothing"
    return (f"simulator {installation.VERSION}, level {chosen.level}, {len(chosen.tasks)} task types, "
            f"simplified: {simpler}")


def check(environment: Environment, task: str) -> None:
    """Checks nothing: a broken task cannot be found without a JVM."""
    environment.task_digest(task)


def findings() -> Iterator[Finding]:
    """Finds the simulator and Java, which no other environment needs."""
    try:
        installation.find_jar()
        command = installation.find_java()
    except UserError as error:
        yield Finding(check="ScienceWorld", status="warning", detail=error.what, fix=error.fix)
    else:
        yield Finding(check="ScienceWorld", status="ok", detail=f"simulator {installation.VERSION}, Java "
                      f"{installation.java_version(command)} at {command}")


SPEC = EnvironmentSpec(
    open=open_environment, check=check, describe=describe, findings=findings, teacher=TEACHER,
    prompts={"full": ScienceworldFullTemplate, "compact": ScienceworldCompactTemplate,
             "meta": ScienceworldMetaTemplate, "compact-meta": ScienceworldCompactMetaTemplate},
    threaded=lambda _: True, session_bytes=MEMORY_BYTES, says_unchanged=False,
)
