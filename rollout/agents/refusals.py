"""Refusals of a request, and how a dialect treats the fields that it does not read.

A field that changes an answer or its prompt is served, or refused by its name. If it were ignored, the agent would
train on other prompts and answers than it asked for. The only fields that are ignored have no effect, or the run
decides them, such as the temperature.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from pydantic import Field

T = TypeVar("T")
ListOf = Annotated[list[T], Field(fail_fast=True)]
"""A list of a request. Pydantic stops at its first wrong element: it would build an error for each one."""
CONSTRAINED = "answers are not constrained: a policy would not be what is trained"
ENTIRE = "each answer is a whole message: leave it out"
RENDERED = "it is the run's: set model.chat_template_kwargs in its config"
TEXT_ALONE = "the policy reads and writes text alone: leave it out"
UNREAD = "this endpoint does not have it: leave it out"


class Refused(Exception):
    """A request that gets an error in the form of its dialect. `kind`: OpenAI's type and code of the error."""

    def __init__(self, status: int, message: str, kind: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.status, self.message, self.kind = status, message, kind


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRules:
    """The fields of a dialect that this endpoint does not read."""

    ignored: frozenset[str]
    """Fields that change no answer, or that the run decides."""
    refused: Mapping[str, str]
    """Maps fields that change an answer or its prompt to why they are refused."""
    idle: Mapping[str, tuple[Any, ...]] = field(default_factory=dict[str, tuple[Any, ...]])
    """Maps fields to the values with which they change nothing. For all other fields these are the empty values."""

    def refusal(self, fields: Mapping[str, Any] | None) -> str | None:
        """Returns why a request with these fields cannot be served, or None. Fields with an idle value are served."""
        for name, value in (fields or {}).items():
            if name not in self.ignored and (value not in self.idle[name] if name in self.idle else value):
                return f"{name} is set, and {self.refused.get(name, UNREAD)}"
        return None

    def check(self, fields: Mapping[str, Any] | None) -> None:
        """Raises Refused if a request with these fields cannot be served."""
        if reason := self.refusal(fields):
            raise Refused(400, reason)
