"""The answers of a session, as they are kept for repeated requests."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import msgspec

from envservice.base import Outcome

OBJECTS = 400
"""Bytes that a step records beside its action and answer: objects, digest, places in lists."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A result, encoded once for all its repetitions."""

    body: bytes
    """JSON of schemas.StepResult."""
    digest: str
    done: bool
    rebuilt: bool = False
    """The session had to be rebuilt for this answer."""

    @property
    def size(self) -> int:
        """Bytes that a step with this answer takes, without its action."""
        return sys.getsizeof(self.body) + OBJECTS


def answered(outcome: Outcome, digest: str) -> Answer:
    """Returns the answer with this outcome. `digest` is that of the game so far."""
    told = {"state": outcome.state, "unchanged": outcome.unchanged, "truncated": outcome.truncated}
    body = msgspec.json.encode({
        "observation": outcome.observation, "admissible_actions": outcome.admissible_actions,
        "reward": float(outcome.reward), "done": outcome.done, "won": outcome.won, "info": outcome.info,
        **{name: value for name, value in told.items() if value}, "digest": digest,
    })
    return Answer(body, digest, outcome.done)
