"""Any OpenEnv server as an environment: each session holds a WebSocket, and a task is a number, by default a seed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from envservice.gymnasium_text import text_spec
from envservice.spec import LONGEST, EnvironmentSpec
from services.errors import EnvFault, UserError

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

Fields = Mapping[str, Any]
MAX_MESSAGE = 16 * 1024 * 1024
"""The most bytes of one answer."""


def write_action(text: str) -> Fields:
    """Returns the action of our own servers."""
    return {"action": text}


def seeded(number: int) -> Fields:
    """Returns the fields of a reset that takes a task's number as its seed."""
    return {"seed": number}


def read_text(observation: Fields) -> str:
    """Returns the text of an observation of our own servers."""
    return observation["text"]


class OpenEnvGame:
    """One session of an OpenEnv server, as a game of gymnasium_text.py. Every failure of the server is an EnvFault.

    If an observation has `admissible_actions` or `won`, they are taken as they are. `begin` returns the fields of a
    reset from the task's number, `write` those of a step from an action, and `read` the text of an observation.
    """

    def __init__(self, url: str, *, begin: Callable[[int], Fields] = seeded,
                 write: Callable[[str], Fields] = write_action, read: Callable[[Fields], str] = read_text,
                 seconds: float = 60.0) -> None:
        self._url, self._begin, self._write, self._read, self._seconds = url, begin, write, read, seconds
        self._socket: ClientConnection | None = None

    def reset(self, *, seed: int) -> tuple[str, dict[str, Any]]:
        """Opens a session of the task with this number."""
        observation, _ = self.ask("reset", self._begin(seed))
        return self._text(observation), _told(observation)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Takes one action. One that `write` refuses by ValueError is answered with its reason."""
        try:
            fields = self._write(action)
        except ValueError as refused:
            return str(refused), 0.0, False, False, {}
        observation, data = self.ask("step", fields)
        return self._text(observation), float(data.get("reward") or 0.0), bool(data.get("done")), False, \
            _told(observation)

    def ask(self, verb: str, fields: Fields) -> tuple[Fields, Fields]:
        """Sends one message. Returns the observation, and the data around it with reward and `done`."""
        from websockets.exceptions import WebSocketException

        try:
            socket = self._socket or self._connect()
            socket.send(msgspec.json.encode({"type": verb, "data": fields}).decode())
            answer: Any = msgspec.json.decode(socket.recv(self._seconds))
        except (OSError, WebSocketException, msgspec.DecodeError) as error:  # TimeoutError is an OSError
            raise EnvFault(f"{self._url} failed to {verb}: {type(error).__name__} {error}") from error
        data: Any = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(data, dict) or answer.get("type") != "observation":
            raise EnvFault(f"{self._url} answered a {verb} with {str(answer)[:300]}")
        observation: Any = data.get("observation")
        if not isinstance(observation, dict):
            raise EnvFault(f"{self._url} answered a {verb} without an observation: {str(data)[:300]}")
        return observation, data

    def _connect(self) -> ClientConnection:
        from websockets.sync.client import connect

        url = f"ws{self._url.rstrip('/').removeprefix('http')}/ws"
        held = ExitStack()
        self._socket = held.enter_context(
            connect(url, open_timeout=self._seconds, close_timeout=1, max_size=MAX_MESSAGE, proxy=None))
        weakref.finalize(self, held.close)  # a session ends when its server forgets it
        return self._socket

    def _text(self, observation: Fields) -> str:
        try:
            return str(self._read(observation))
        except (KeyError, TypeError) as error:
            raise EnvFault(f"`read` finds no text in an observation of {self._url} with the fields "
                           f"{', '.join(observation)}: {type(error).__name__} {error}") from error


def _told(observation: Fields) -> dict[str, Any]:
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
        try:
            game().reset(seed=0)
        except EnvFault as fault:
            raise UserError(str(fault), f"start the OpenEnv server of {name}, or correct its URL") from None

    spec = text_spec(game, name=name, max_steps=max_steps, sizes=sizes, replayable=replayable)
    return replace(spec, reachable=reachable, threaded=lambda _: True,
                   describe=lambda _: f"OpenEnv server {url}, numbers as tasks")
