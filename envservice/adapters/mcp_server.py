"""Our environments as tools of MCP, over standard input and output: `reset` starts a game, `step` takes an action.

The client starts this process, which holds one session and ends with its input. Each line is a message of JSON-RPC 2.0.
The protocol is written out here, and not taken from the package `mcp`, because agents' packages require versions of it
that exclude each other. A call that hangs blocks only its own client, which has its own deadline and ends the process.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, BinaryIO

import msgspec

from envservice.adapters.openenv_server import MAX_MESSAGE, SCHEMA, TEXT, OpenEnvError, OpenEnvPlay
from envservice.base import Environment
from services.errors import described, utf8
from services.files import NOT_JSON

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Versions of the protocol. Our messages are the same in all. A client that asks for another version gets the last."""
TOOLS = [
    {"name": "reset", "description": "Starts a game: the task with this id, or task number `seed` of a split, or a "
     "random one. Returns what there is to see.",
     "inputSchema": {"type": "object", "properties": {"task": TEXT, "split": TEXT, "seed": {"type": "integer"}}}},
    {"name": "step", "description": "Takes one action in the game, and returns what it led to.",
     "inputSchema": SCHEMA["action"]},
]
PARSE_ERROR, INVALID_REQUEST, NO_METHOD, INVALID_PARAMS = -32700, -32600, -32601, -32602


class RpcError(Exception):
    """A request that is answered by an error of JSON-RPC."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(slots=True)
class McpSession:
    """One client's session."""

    environment: Environment
    _play: OpenEnvPlay = field(init=False)

    def __post_init__(self) -> None:
        self._play = OpenEnvPlay(self.environment)

    def answer(self, line: bytes) -> bytes | None:
        """Returns the answer to one message as a line, or None for a notification, which gets none."""
        number: object = None
        try:
            message = _decoded(line)
            number = message.get("id")
            if number is None or "method" not in message:  # a notification, or an answer to a request we never send
                return None
            reply: dict[str, Any] = {"result": self._result(message["method"], message.get("params") or {})}
        except RpcError as error:
            reply = {"error": {"code": error.code, "message": utf8(str(error))}}
        return msgspec.json.encode({"jsonrpc": "2.0", "id": number, **reply}) + b"\n"

    def _result(self, method: object, params: object) -> dict[str, Any]:
        if not isinstance(params, dict):
            raise RpcError(INVALID_PARAMS, "`params` is an object")
        if method == "initialize":
            asked, made = params.get("protocolVersion"), self.environment
            return {"protocolVersion": asked if asked in VERSIONS else VERSIONS[-1], "capabilities": {"tools": {}},
                    "serverInfo": {"name": f"gagpo {made.name}", "version": version("gagpo")},
                    "instructions": f"{made.name}, played as text: call reset, then step until the game is over."}
        if method == "ping":
            return {}
        if method == "tools/list":
            return {"tools": TOOLS}
        if method == "tools/call":
            return self._call(params.get("name"), params.get("arguments") or {})
        raise RpcError(NO_METHOD, f"there is no method {method!r}")

    def _call(self, name: object, arguments: object) -> dict[str, Any]:
        verbs = {"reset": self._play.reset, "step": self._play.step}
        if not isinstance(name, str) or name not in verbs or not isinstance(arguments, dict):
            raise RpcError(INVALID_PARAMS, f"there is no tool {name!r} with {arguments!r:.60}; call reset or step")
        try:
            now = verbs[name](arguments)
        except OpenEnvError as refused:
            return _content(str(refused), isError=True)
        except (Exception, SystemExit) as error:  # a game that leaves by `sys.exit` would end the server
            self._play.fail(error)
            return _content(f"the engine failed: {described(error)}", isError=True)
        return _content(_shown(now), structuredContent=now)


def _decoded(line: bytes) -> dict[str, Any]:
    try:
        message: Any = msgspec.json.decode(line)
    except NOT_JSON as error:
        raise RpcError(PARSE_ERROR, str(error)) from None
    if not isinstance(message, dict):
        raise RpcError(INVALID_REQUEST, "a message is one object")
    return message


def _content(text: str, **fields: object) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": utf8(text)}], **fields}


def _shown(now: dict[str, Any]) -> str:
    """Returns an outcome as a model reads it: the text, then the admissible actions, or the result of a game that is
    over."""
    seen = now["observation"]
    if now["done"]:
        return f"{seen['text']}\n\nThe game is over: {'won' if seen['won'] else 'lost'}."
    actions = seen["admissible_actions"]
    return seen["text"] + (f"\n\nYour actions: {', '.join(actions)}" if actions else "")


def serve_mcp(open_environment: Callable[[], Environment]) -> None:
    """Serves until standard input ends. What a game prints goes to standard error.

    Raises UserError for missing packages or data.
    """
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    made = open_environment()
    with out, made if isinstance(made, contextlib.AbstractContextManager) else contextlib.nullcontext():
        _answer_all(McpSession(made), sys.stdin.buffer, out)


def _answer_all(session: McpSession, stream: BinaryIO, out: BinaryIO) -> None:
    while line := stream.readline(MAX_MESSAGE):
        if line.strip() and (answer := session.answer(line)) is not None:
            out.write(answer)
            out.flush()
