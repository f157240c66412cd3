"""Our engine of ALFWorld: a session is a small state over a shared game, a step some tens of microseconds.

It answers, character for character, as `AlfredDemangler(PddlEnv(infos), shuffle=False)` of alfworld 0.4.2 with
textworld 1.7.0 does; tests/parity/alfworld holds it to that. Not thread-safe per session; sessions are independent.
"""

from __future__ import annotations

from envservice.alfworld import rules, text
from envservice.alfworld.game import Game
from envservice.base import Outcome

VERSION = "1"
"""Grows when any text, command list or reward changes."""


class OwnSession:
    """One play of one game."""

    def __init__(self, game: Game) -> None:
        self._state = rules.WorldState(game)
        self._commands = rules.commands(self._state)

    def reset(self) -> Outcome:
        self._state = rules.WorldState(self._state.game)
        self._commands = rules.commands(self._state)
        return self._outcome(text.introduction(self._state), started=False)

    def step(self, action: str) -> Outcome:
        command = self._commands.get(action.strip())
        if command is None:
            return self._outcome(text.NOTHING_HAPPENS)
        rules.apply(self._state, command)
        self._commands = rules.commands(self._state)
        return self._outcome(text.feedback(self._state, command))

    def _outcome(self, observation: str, *, started: bool = True) -> Outcome:
        won = rules.won(self._state)
        return Outcome(
            observation=observation,
            admissible_actions=sorted(self._commands),
            reward=float(won and started),
            done=won and started,
            won=won,
        )
