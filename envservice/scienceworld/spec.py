"""The EnvironmentSpec of ScienceWorld."""

from __future__ import annotations

from collections.abc import Iterator

from envservice.base import Environment
from envservice.scienceworld import simulator
from envservice.scienceworld.environment import ScienceworldEnvironment
from envservice.scienceworld.prompts import (
    ScienceworldCompactMetaTemplate,
    ScienceworldCompactTemplate,
    ScienceworldFullTemplate,
    ScienceworldMetaTemplate,
)
from envservice.scienceworld.simulator import MEMORY_BYTES
from envservice.scienceworld.teacher import TEACHER
from envservice.spec import EnvironmentSpec, Finding
from services.config.tree import EnvSection
from services.errors import UserError


def open_environment(env: EnvSection) -> Environment:
    """Opens the environment, and starts neither simulator nor Java. Raises UserError if one is missing."""
    return ScienceworldEnvironment(env.scienceworld)


def describe(env: EnvSection) -> str:
    """Names the tasks and their simplifications in one line."""
    chosen = env.scienceworld
    simpler = ", ".join(chosen.simplifications) or "nothing"
    return (f"simulator {simulator.VERSION}, level {chosen.level}, {len(chosen.tasks)} task types, "
            f"simplified: {simpler}")


def check(environment: Environment, task: str) -> None:
    """Checks only the id: without a JVM nothing else would show that a task is broken."""
    environment.task_digest(task)


def findings() -> Iterator[Finding]:
    """Reports on the simulator and Java, which no other environment needs."""
    try:
        simulator.find_jar()
        command = simulator.find_java()
    except UserError as error:
        yield Finding(check="ScienceWorld", status="warning", detail=error.what, fix=error.fix)
    else:
        yield Finding(check="ScienceWorld", status="ok", detail=f"simulator {simulator.VERSION}, Java "
                      f"{simulator.java_version(command)} at {command}")


SPEC = EnvironmentSpec(
    open=open_environment, check=check, describe=describe, findings=findings, teacher=TEACHER,
    prompts={"full": ScienceworldFullTemplate, "compact": ScienceworldCompactTemplate,
             "meta": ScienceworldMetaTemplate, "compact-meta": ScienceworldCompactMetaTemplate},
    threaded=lambda _: True, session_bytes=MEMORY_BYTES, says_unchanged=False,
)
