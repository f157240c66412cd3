"""The engine of alfworld and textworld behind our protocol. It is the oracle of the parity tests.

It is about a thousand times slower than ours, and disturbs its process, so every call holds one lock: its translation
of PDDL replaces sys.argv and sys.stdout while it runs, and its parser is shared and not thread-safe. sys.argv is
restored afterwards; text that another thread prints meanwhile is lost. Its expert is not used, because that costs more
and leaks facts into the observations. Each session loads a copy of the planner's library, which is never unloaded,
because unloading crashes the process. So some megabytes stay for every game opened: use this engine for comparisons,
not for long training.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from envservice.alfworld.engine import NOTHING_HAPPENS
from envservice.base import Outcome
from services.errors import UserError

_lock = threading.Lock()


def missing_packages() -> list[str]:
    """Returns the modules that the engine imports and that are not installed."""
    return [name for name in ("alfworld", "textworld", "tatsu", "fast_downward")
            if importlib.util.find_spec(name) is None]


def require_textworld() -> str:
    """Returns `alfworld <version>, textworld <version>`. Raises UserError if what it imports is not installed."""
    if missing := missing_packages():
        raise UserError(f"the engine `textworld` needs {', '.join(missing)}",
                        "pip install 'gagpo[alfworld]', or use the engine `own`")
    return f"alfworld {version('alfworld')}, textworld {version('textworld')}"


@contextmanager
def _alone() -> Iterator[None]:
    """Holds the lock, keeps sys.argv, and hides ALFWORLD_DATA's default, which importing alfworld would export."""
    with _lock:
        argv, data = sys.argv, os.environ.get("ALFWORLD_DATA")
        try:
            yield
        finally:
            sys.argv = argv
            if data is None:
                os.environ.pop("ALFWORLD_DATA", None)


class TextworldSession:
    """One play of one game, by the reference engine."""

    def __init__(self, data: Mapping[str, object]) -> None:
        """`data` is the parsed `game.tw-pddl` file. Raises UserError if the engine is not installed."""
        require_textworld()
        with _alone():
            self._env = _make(data)

    def reset(self) -> Outcome:
        with _alone():
            state = self._env.reset()
        return Outcome(
            observation=state["feedback"], admissible_actions=list(state["admissible_commands"]), won=bool(state["won"])
        )

    def step(self, action: str) -> Outcome:
        with _alone():
            state, reward, done = self._env.step(action)
        return Outcome(
            observation=state["feedback"],
            admissible_actions=list(state["admissible_commands"]),
            reward=float(reward),
            done=bool(done),
            won=bool(state["won"]),
            unchanged=state["feedback"] == NOTHING_HAPPENS,
        )


def _make(data: Mapping[str, object]) -> Any:
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
    from textworld.envs import PddlEnv

    env = AlfredDemangler(PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True)), shuffle=False)
    env.load(data)
    return env
