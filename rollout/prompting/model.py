"""The model that a prompting baseline asks: an endpoint (endpoint.py) or our own sampler (sampler.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from services.chat import Message


class ModelAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One answer, and its cost in tokens. None: the endpoint does not count tokens."""

    text: str
    prompt_tokens: int | None
    answer_tokens: int | None


class ContextFull(Exception):
    """The conversation is longer than the model reads. It ends the trial, which keeps its true reward."""


class AskedModel(Protocol):
    """A model that answers conversations. Several calls may run at once."""

    async def ask(self, messages: Sequence[Message], *, seed: int) -> ModelAnswer:
        """Returns the next message. Raises ContextFull, UserError if the request is refused, or EngineFault."""
        ...
