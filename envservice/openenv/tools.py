"""OpenEnv servers whose actions are calls of tools (MCP), as environments that offer these tools to agents.

A step lists the tools, `{"type": "list_tools"}`, or calls one, `{"type": "call_tool", "tool_name": ...,
"arguments": {...}}`. The observation of a call has `result`, the result of MCP, or `error`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from envservice.openenv.client import SHOWN, Fields, OpenEnvGame, openenv_spec, seeded
from envservice.spec import LONGEST, EnvironmentSpec
from envservice.tool_calls import Tool, read_call
from services.errors import UserError


def write_tool_call(action: str) -> Fields:
    """Returns the step that calls a tool. Raises ValueError for an action that is no call."""
    call = read_call(action)
    if call is None:
        raise ValueError("Call a tool.")
    return {"type": "call_tool", "tool_name": call.name, "arguments": call.arguments}


def read_tool_result(observation: Fields) -> str:
    """Returns what a tool answered, or why it could not. Other observations, such as a reset's, are shown as JSON.

    Raises TypeError for a part that is no text, such as an image.
    """
    if observation.get("error"):
        return f"Error: {observation['error']['message']}"
    result = observation["result"] if "tool_name" in observation else observation
    parts = result.get("content") if isinstance(result, dict) else None
    if isinstance(parts, list):
        return "\n".join(map(_text_of, parts))
    return result if isinstance(result, str) else msgspec.json.encode(result).decode()


def _text_of(part: Fields) -> str:
    """Returns the text of a part of a result. Parts left out would make one state of different answers."""
    text = part.get("resource", part).get("text")
    if text is None:
        raise TypeError(f"a part of type {part.get('type')}, and the policy reads text alone; give your own `read`")
    return str(text)


def server_tools(url: str, seconds: float) -> tuple[Tool, ...]:
    """Asks a server for its tools. Raises EnvFault if it is away or full, and UserError if it lists none."""
    observation, _ = OpenEnvGame(url, seconds=seconds).ask("step", {"type": "list_tools"})
    if not observation.get("tools"):
        raise UserError(f"the OpenEnv server {url} offers no tools", "use openenv_spec with `write` and `read`")
    try:
        return tuple(_tool(told) for told in observation["tools"])
    except (KeyError, TypeError):
        raise UserError(f"the OpenEnv server {url} lists its tools as {str(observation['tools'])[:SHOWN]}",
                        "each needs a name, a description and an input_schema") from None


def openenv_tools_spec(
    url: str, *, name: str, begin: Callable[[int], Fields] = seeded, read: Callable[[Fields], str] = read_tool_result,
    max_steps: int = LONGEST, sizes: tuple[int, int, int] = (1000, 100, 300), replayable: bool = False,
    seconds: float = 60.0,
) -> EnvironmentSpec:
    """Makes the EnvironmentSpec of an OpenEnv server with tools. The server is asked for them by its `tools` alone.

    The arguments are those of `openenv_spec`.
    """
    spec = openenv_spec(url, name=name, begin=begin, write=write_tool_call, read=read, max_steps=max_steps, sizes=sizes,
                        replayable=replayable, seconds=seconds)
    return replace(spec, tools=lambda: server_tools(url, seconds))


def _tool(told: dict[str, Any]) -> Tool:
    return {"type": "function", "function": {"name": told["name"], "description": told["description"],
                                             "parameters": told["input_schema"]}}
