"""Tool calls in an answer: JSON in `<tool_call>` tags, as Hermes and the Qwen families write them.

An answer that opens a call and does not finish it, or whose JSON names no tool, is broken: the agent gets its text, and
the step is invalid.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import msgspec

CALL, CALL_END = "<tool_call>", "</tool_call>"
_CALLS = re.compile(re.escape(CALL) + "(.*?)" + re.escape(CALL_END), re.DOTALL)


class ToolCall(msgspec.Struct, frozen=True):
    """A call that the model asks for."""

    name: str
    arguments: dict[str, Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedAnswer:
    """An answer in parts."""

    content: str
    """The text around the calls; without calls, the whole text as it is."""
    calls: list[ToolCall]
    whole: bool
    """False if a call is broken; then it is part of the content."""


def parse_calls(text: str) -> ParsedAnswer:
    """Takes the tool calls out of an answer."""
    calls: list[ToolCall] = []
    try:
        for found in _CALLS.findall(text):
            calls.append(msgspec.json.decode(found.strip(), type=ToolCall))
    except msgspec.DecodeError:
        return ParsedAnswer(content=text, calls=[], whole=False)
    rest = _CALLS.sub("", text)
    return ParsedAnswer(content=rest.strip() if calls else text, calls=calls, whole=CALL not in rest)
