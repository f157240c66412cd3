"""Any OpenEnv server as an environment: each session holds a WebSocket, and a task is a number, by default a seed.

A session of OpenEnv is one WebSocket at `/ws`. Each message and each answer is JSON, `{"type": ..., "data": {...}}`:

    reset   {"seed": 7, ...}       observation   {"observation": {...}, "reward": 0.0, "done": false}
    step    the action's fields    observation
    state                          state         {"episode_id": ..., "step_count": 2}
    close                          error         {"message": ..., "code": ...}

A server whose actions are calls of tools (MCP) offers them to agents: the step `{"type": "list_tools"}` lists them, and
`{"type": "call_tool", "tool_name": ..., "arguments": {...}}` calls one. The observation of a call has `result`, the
result of MCP, or `error`.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from envservice.adapters.gymnasium import text_spec
from envservice.spec import LONGEST, EnvironmentSpec
from envservice.text.tool_calls import Tool, read_call
from services.errors import EnvFault, Unavailable, UserError, described
from services.files import NOT_JSON
from services.process.own_code import as_user_error

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

Fields = Mapping[str, Any]
MAX_MESSAGE = 16 * 1024 * 1024
"""The most bytes of one answer."""
SHOWN = 300
"""Characters of an answer that a fault repeats."""
_MAKERS = {"reset": "begin", "step": "write"}
"""Maps a message to the argument of `openenv_spec` that makes its fields, for errors."""


def write_action(text: str) -> Fields:
    """Returns the action of our own servers."""
    return {"action": text}


def seeded(number: int) -> Fields:
    """Returns the fields of a reset that takes a task's number as its seed."""
    return {"seed": number}


def read_text(observation: Fields) -> str:
    """Returns the text of an observation of our own servers."""
    return observation["text"]


class NoAnswer(EnvFault):
    """The server closed the connection or did not answer in time."""


class NoConnection(Unavailable):
    """The server cannot be reached, so no session has begun."""


class OpenEnvGame:
    """One session of an OpenEnv server, as a game of gymnasium.py. Every failure of the server is an EnvFault,
    Unavailable if it cannot be reached.

    `admissible_actions` and `won` of an observation go into the info. `begin` turns the task's number into the fields
    of a reset, `write` an action into those of a step, and `read` an observation's fields into its text.
    """

    def __init__(self, url: str, *, begin: Callable[[int], Fields] = seeded,
                 write: Callable[[str], Fields] = write_action, read: Callable[[Fields], str] = read_text,
                 seconds: float = 60.0) -> None:
        self._url, self._begin, self._write, self._read, self._seconds = url, begin, write, read, seconds
        self._socket: ClientConnection | None = None

    def reset(self, *, seed: int) -> tuple[str, dict[str, Any]]:
        """Opens a session of the task with this number."""
        observation, _ = self.ask("reset", self._begin(seed))
        return self._text(observation), _info(observation)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Takes one action. If `write` raises ValueError, its text is the observation, and the server is not asked."""
        try:
            fields = self._write(action)
        except ValueError as refused:
            return str(refused), 0.0, False, False, {}
        observation, data = self.ask("step", fields)
        return self._text(observation), self._reward(data), self._done(data), False, _info(observation)

    def ask(self, verb: str, fields: Fields) -> tuple[Fields, Fields]:
        """Sends one message. Returns the observation, and the data around it with reward and `done`."""
        answer = self._answer(verb, self._message(verb, fields))
        data: Any = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(data, dict) or answer.get("type") != "observation":
            full = isinstance(data, dict) and data.get("code") == "CAPACITY_REACHED"
            raise EnvFault(f"{self._url} answered a {verb} with {str(answer)[:SHOWN]}" + (
                " (play fewer games at once by env.max_sessions or prompting.concurrency, or raise the server's "
                "max_concurrent_envs)" if full else ""))
        observation: Any = data.get("observation")
        if not isinstance(observation, dict):
            raise EnvFault(f"{self._url} answered a {verb} without an observation: {str(data)[:SHOWN]}")
        return observation, data

    def _message(self, verb: str, fields: Fields) -> str:
        try:
            return msgspec.json.encode({"type": verb, "data": fields}).decode()
        except (TypeError, ValueError, msgspec.EncodeError) as error:
            raise EnvFault(f"`{_MAKERS[verb]}` returned {fields!r:.60}, which JSON cannot hold ({error})") from error

    def _answer(self, verb: str, message: str) -> Any:
        from websockets.exceptions import WebSocketException

        try:
            socket = self._socket or self._connect()
        except (OSError, WebSocketException) as error:
            raise NoConnection(f"{self._url} failed to {verb}: {type(error).__name__} {error}") from error
        try:
            socket.send(message)
            answer = socket.recv(self._seconds)
        except (OSError, WebSocketException) as error:  # TimeoutError is an OSError
            raise NoAnswer(f"{self._url} failed to {verb}: {type(error).__name__} {error}") from error
        try:
            return msgspec.json.decode(answer)
        except NOT_JSON as error:
            raise EnvFault(f"{self._url} answered a {verb} with no JSON ({error}): {answer[:SHOWN]!r}") from error

    def _connect(self) -> ClientConnection:
        from websockets.sync.client import connect

        url = f"{re.sub('^http', 'ws', self._url.rstrip('/'))}/ws"
        held = ExitStack()
        self._socket = held.enter_context(connect(  # a server that steps in its event loop answers no ping meanwhile
            url, open_timeout=self._seconds, ping_timeout=self._seconds, close_timeout=1, max_size=MAX_MESSAGE,
            proxy=None))
        # The socket closes when the session is dropped. At its end the process does not wait for a hung server.
        weakref.finalize(self, held.close).atexit = False
        return self._socket

    def _text(self, observation: Fields) -> str:
        where = f"an observation of {self._url} with the fields {', '.join(observation)}"
        try:
            text: object = self._read(observation)
        except Exception as error:
            raise EnvFault(f"`read` finds no text in {where}: {described(error)}") from error
        if not isinstance(text, str):
            raise EnvFault(f"`read` returned {type(text).__name__} {text!r:.60}, and not a text, from {where}")
        return text

    def _reward(self, data: Fields) -> float:
        """Returns the reward: 0 for null, by which a server says that a step has none."""
        reward: object = data.get("reward", "")
        if not isinstance(reward, int | float | None):
            raise EnvFault(f"{self._url} answered a step without a number as its reward: {str(data)[:SHOWN]}")
        return float(reward or 0.0)

    def _done(self, data: Fields) -> bool:
        done: object = data.get("done")
        if not isinstance(done, bool):
            raise EnvFault(f"{self._url} answered a step without true or false as its `done`: {str(data)[:SHOWN]}")
        return done


def _info(observation: Fields) -> dict[str, Any]:
    return {name: observation[name] for name in ("admissible_actions", "won") if name in observation}


def openenv_spec(  # noqa: PLR0913 - servers differ in all of it
    url: str, *, name: str, begin: Callable[[int], Fields] = seeded, write: Callable[[str], Fields] = write_action,
    read: Callable[[Fields], str] = read_text, max_steps: int = LONGEST,
    sizes: tuple[int, int, int] = (1000, 100, 300), replayable: bool = False, seconds: float = 60.0,
) -> EnvironmentSpec:
    """Makes the EnvironmentSpec of an OpenEnv server, for `env.name` to point to.

    `begin` turns the number of a task into the fields of a reset, `write` an answer of the policy into the fields of an
    action, `read` an observation's fields into text. If `write` raises ValueError, its text answers the action.
    `replayable`: whether a seed and the same actions lead to the same outcomes; if not, a lost session is not rebuilt.
    `seconds` is the deadline of each message. The rest is as in `text_spec`.
    """
    def game() -> OpenEnvGame:
        return OpenEnvGame(url, begin=begin, write=write, read=read, seconds=seconds)

    def reachable(_: object) -> None:
        with as_user_error(f"the OpenEnv server of {name} cannot be played",
                           "correct `begin` or `read`, or the server"):
            try:
                game().reset(seed=0)
            except (NoAnswer, NoConnection) as error:
                raise UserError(str(error), f"start the OpenEnv server of {name}, or correct its URL") from None

    spec = text_spec(game, name=name, max_steps=max_steps, sizes=sizes, replayable=replayable, threaded=True)
    return replace(spec, reachable=reachable, describe=lambda _: f"OpenEnv server {url}, numbers as tasks")


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
    """Returns the text of a part of a result. No part is left out: different answers would look like one state."""
    text = part.get("resource", part).get("text")
    if text is None:
        raise TypeError(f"a part of type {part.get('type')}, and the policy reads text alone; give your own `read`")
    return str(text)


def server_tools(url: str, seconds: float) -> tuple[Tool, ...]:
    """Asks a server for its tools. Raises EnvFault if it is unavailable or full, and UserError if it lists none."""
    observation, _ = OpenEnvGame(url, seconds=seconds).ask("step", {"type": "list_tools"})
    if not observation.get("tools"):
        raise UserError(f"the OpenEnv server {url} offers no tools", "use openenv_spec with `write` and `read`")
    try:
        return tuple(_tool(listed) for listed in observation["tools"])
    except (KeyError, TypeError):
        raise UserError(f"the OpenEnv server {url} lists its tools as {str(observation['tools'])[:SHOWN]}",
                        "each needs a name, a description and an input_schema") from None


def openenv_tools_spec(
    url: str, *, name: str, begin: Callable[[int], Fields] = seeded, read: Callable[[Fields], str] = read_tool_result,
    max_steps: int = LONGEST, sizes: tuple[int, int, int] = (1000, 100, 300), replayable: bool = False,
    seconds: float = 60.0,
) -> EnvironmentSpec:
    """Makes the EnvironmentSpec of an OpenEnv server with tools. Only the spec's `tools` asks the server for their
    list.

    The arguments are those of `openenv_spec`.
    """
    spec = openenv_spec(url, name=name, begin=begin, write=write_tool_call, read=read, max_steps=max_steps, sizes=sizes,
                        replayable=replayable, seconds=seconds)
    return replace(spec, tools=lambda: server_tools(url, seconds))


def _tool(listed: dict[str, Any]) -> Tool:
    return {"type": "function", "function": {"name": listed["name"], "description": listed["description"],
                                             "parameters": listed["input_schema"]}}
