"""Our engine of ALFWorld. A session is a small state over a shared game, and a step takes tens of microseconds.

It answers character by character as `AlfredDemangler(PddlEnv(infos), shuffle=False)` of alfworld 0.4.2 with
textworld 1.7.0 does, which tests/parity/alfworld checks. A session is not thread-safe; sessions are independent.
"""

from __future__ import annotations

from envservice.alfworld import rules, text
from envservice.alfworld.game import Game
from envservice.base import Outcome

VERSION = "1"
"""Raise it whenever a text, a command list or a reward changes."""


class OwnSession:
    """One play of one game."""

    def __init__(self, game: Game, *, tells_state: bool = False) -> None:
        """`tells_state`: outcomes carry the exact state, which no real environment would tell."""
        self._tells_state = tells_state
        self._state = rules.WorldState(game)
        self._commands = rules.commands(self._state)

    def reset(self) -> Outcome:
        self._state = rules.WorldState(self._state.game)
        self._commands = rules.commands(self._state)
        return self._outcome(text.introduction(self._state), started=False)

    def step(self, action: str) -> Outcome:
        command = self._commands.get(action.strip())
        if command is None:
            return self._outcome(text.NOTHING_HAPPENS, unchanged=True)
        rules.apply(self._state, command)
        self._commands = rules.commands(self._state)
        return self._outcome(text.feedback(self._state, command))

    def _outcome(self, observation: str, *, started: bool = True, unchanged: bool = False) -> Outcome:
        won = rules.won(self._state)
        return Outcome(
            observation=observation,
            admissible_actions=sorted(self._commands),
            reward=float(won and started),
            done=won and started,
            won=won,
            state=rules.digest(self._state) if self._tells_state else "",
            unchanged=unchanged,
        )
