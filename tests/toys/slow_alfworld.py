"""ALFWorld with steps as slow as those of a heavier environment: then the number of its servers decides the speed.

A step takes $SLOW_STEP_S seconds more, and a server takes one step at a time. The variable is set for servers alone.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any

from envservice.alfworld.spec import SPEC as ALFWORLD
from envservice.base import Environment, Outcome, Session
from services.config.tree import EnvSection

STEP_S = float(os.environ.get("SLOW_STEP_S", "0"))


class SlowSession:
    """A session whose steps take STEP_S more."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def reset(self) -> Outcome:
        return self._session.reset()

    def step(self, action: str) -> Outcome:
        time.sleep(STEP_S)
        return self._session.step(action)


class SlowEnvironment:
    """All of an environment, with slow sessions."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    def open(self, task: str) -> Session:
        return SlowSession(self._environment.open(task))


def open_environment(env: EnvSection) -> Any:
    return SlowEnvironment(ALFWORLD.open(env))


SPEC = replace(ALFWORLD, open=open_environment, holding=lambda env, _: open_environment(env),
               check=lambda environment, task: environment.task_type(task), threaded=lambda _: True)
