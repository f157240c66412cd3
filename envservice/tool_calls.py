"""Tools that an environment offers, and calls of tools in an answer.

A tool is described as OpenAI's API does, and shown to the model by the model's own chat template. A call comes back as
JSON in `<tool_call>` tags, as Hermes and the Qwen families write it. An environment receives a call as its action, the
JSON text of written_call, so sessions with tools are recorded, rebuilt and checked as all others are.

An answer that opens a call and does not finish it, or whose JSON names no tool, is broken: the agent gets its text, and
the step is invalid.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

CALL, CALL_END = "<tool_call>", "</tool_call>"
_CALLS = re.compile(re.escape(CALL) + "(.*?)" + re.escape(CALL_END), re.DOTALL)


Tool = Mapping[str, Any]
"""A tool in OpenAI's form: `type` and `function`, which has `name`, `description` and `parameters` (a JSON schema)."""


def tool(name: str, description: str, parameters: Mapping[str, Mapping[str, Any]]) -> Tool:
    """Describes a tool. `parameters` maps the name of each argument, all of them required, to its JSON schema."""
    schema = {"type": "object", "properties": dict(parameters), "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


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


def written_call(call: ToolCall) -> str:
    """Returns a call as the action that an environment receives: `{"name":"add","arguments":{"a":7,"b":3}}`."""
    return msgspec.json.encode(call).decode()


def read_call(action: str) -> ToolCall | None:
    """Returns the call that an action is, or None if it is another text."""
    try:
        return msgspec.json.decode(action, type=ToolCall)
    except msgspec.DecodeError:
        return None
