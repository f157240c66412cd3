"""ALFWorld with chosen games that stop in the middle until a test lets them continue.

A run on it stands still where a test wants to break it, however fast or slow the machine is. The environment variable
HELD_TASKS names the file that lists these games; without the file no game stops. Games of demonstrations never stop:
they do not run in a server.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from envservice.alfworld.spec import SPEC as ALFWORLD
from envservice.base import Environment, Outcome, Session
from envservice.spec import opens

FREE_STEPS = 2
PERIOD_S = 0.02


def _file() -> Path:
    return Path(os.environ["HELD_TASKS"])


def hold(tasks: Iterable[str]) -> None:
    """From now on these games, and no others, stop after FREE_STEPS steps."""
    new = _file().with_suffix(".new")
    new.write_text("\n".join(tasks))
    new.rename(_file())


class HeldSession:
    """A session whose later steps wait while its game is listed."""

    def __init__(self, session: Session, task: str) -> None:
        self._session, self._task, self._steps = session, task, 0

    def reset(self) -> Outcome:
        return self._session.reset()

    def step(self, action: str) -> Outcome:
        self._steps += 1
        while self._steps > FREE_STEPS and _file().exists() and self._task in _file().read_text().split("\n"):
            time.sleep(PERIOD_S)
        return self._session.step(action)


class HeldEnvironment:
    """An environment of which only `open` is its own."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    def __getattr__(self, name: str):
        return getattr(self._environment, name)

    def open(self, task: str) -> Session:
        session = self._environment.open(task)
        return HeldSession(session, task) if "serve-env" in sys.argv else session


# A step that waits must not keep the server from answering others: it is taken in a thread.
SPEC = replace(ALFWORLD, open=lambda env: HeldEnvironment(ALFWORLD.open(env)), check=opens, threaded=lambda _: True)
