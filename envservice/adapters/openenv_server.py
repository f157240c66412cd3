"""Our environments for clients of OpenEnv, over WebSockets. openenv.py describes the protocol.

A reset takes `task`, or `split` and `seed`: task number `seed` of the split, modulo the number of its tasks. Without
`split` it is the training split, without `seed` a random task. An action is `{"action": "text"}`.

The session lives as long as its connection, which is closed after an hour without a message. One thread opens and steps
all sessions, as engines are not thread-safe. So a call that hangs would block them all: it ends the process, as it does
in the server of our own API (envservice/server/watchdog.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import importlib.util
import random
import signal
import socket
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec

from envservice.base import Environment, Outcome, Session, outcome_of
from envservice.server.watchdog import Activity, Watchdog
from envservice.wire import MAX_ACTION
from services.config.secrets import ENV_TOKEN_VARIABLE
from services.errors import UserError, utf8
from services.files import NOT_JSON
from services.http.server import bind
from services.process.addresses import check_exposure, host_port
from services.process.forks import forks_apart
from services.process.signals import signal_of
from services.telemetry.logs import get_logger

if TYPE_CHECKING:
    from websockets.asyncio.server import Server, ServerConnection
    from websockets.http11 import Request, Response

log = get_logger("openenv")
MAX_MESSAGE = 1024 * 1024
"""The most bytes of one message of a client."""
TEXT = {"type": "string"}
SCHEMA = {
    "action": {"type": "object", "required": ["action"], "properties": {"action": TEXT}},
    "observation": {"type": "object", "properties": {
        "text": TEXT, "admissible_actions": {"type": "array", "items": TEXT}, "won": {"type": "boolean"},
        "task": TEXT}},
    "state": {"type": "object", "properties": {"episode_id": TEXT, "step_count": {"type": "integer"}, "task": TEXT}},
}


class OpenEnvError(Exception):
    """A message that is answered by an error of OpenEnv."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(slots=True)
class OpenEnvPlay:
    """The episode of one connection."""

    environment: Environment
    task: str = ""
    episode_id: str = ""
    steps: int = 0
    session: Session | None = None
    last: Outcome | None = None

    def reset(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Opens the requested task. Raises OpenEnvError if it does not exist."""
        self.task, self.session = self._task(asked), None
        try:
            self.session = self.environment.open(self.task)
        except KeyError:
            raise OpenEnvError("VALIDATION_ERROR", f"there is no task {self.task!r}") from None
        self.steps, self.episode_id = 0, str(asked.get("episode_id") or uuid.uuid4())
        self.last = outcome_of(self.session.reset(), "reset")
        return self._reply(self.last)

    def step(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Takes an action. Raises OpenEnvError for a message without one, before a reset, and after the end."""
        action = asked.get("action")
        if not isinstance(action, str) or len(action) > MAX_ACTION:
            raise OpenEnvError("VALIDATION_ERROR", f'an action is {{"action": "text"}}, up to {MAX_ACTION} characters')
        if self.session is None or self.last is None or self.last.done:
            raise OpenEnvError("EXECUTION_ERROR", "the episode is over: reset" if self.last else "reset comes first")
        self.last = outcome_of(self.session.step(action), "step")
        self.steps += 1
        return self._reply(self.last)

    def state(self, _: dict[str, Any]) -> dict[str, Any]:
        """Returns the episode's id, its task and its number of steps."""
        return {"episode_id": self.episode_id, "step_count": self.steps, "task": self.task}

    def fail(self, error: BaseException) -> None:
        """Drops the session, whose engine raised `error`. Raises `error` again if it comes from a signal to this
        process."""
        if signal_of(error) is not None:
            raise error
        log.exception("the engine failed", task=self.task)
        self.session = None

    def drop(self, _: dict[str, Any]) -> dict[str, Any]:
        """Drops the session, which closes its game."""
        self.session = None
        return {}

    def _task(self, asked: dict[str, Any]) -> str:
        if isinstance(task := asked.get("task"), str):
            return task
        seed = asked.get("seed")
        number = seed if isinstance(seed, int) else random.getrandbits(32)
        try:
            tasks = self.environment.tasks(str(asked.get("split") or self.environment.training_splits()[0]))
        except UserError as error:
            raise OpenEnvError("VALIDATION_ERROR", str(error)) from None
        return tasks[number % len(tasks)]

    def _reply(self, now: Outcome) -> dict[str, Any]:
        observation = {"text": now.observation, "admissible_actions": now.admissible_actions, "won": now.won,
                       "task": self.task}
        return {"observation": observation, "reward": float(now.reward), "done": now.done, "metadata": now.info}


@dataclass(slots=True, kw_only=True)
class OpenEnvServer:
    """Serves one environment to at most `limit` clients at once. `token`: the bearer token, if clients need one."""

    environment: Environment
    limit: int
    token: str | None = None
    idle_s: float = 3600.0
    """Longest wait in seconds for the next message of a client. After it the connection is closed."""
    call_s: float | None = None
    """Longest time of one call of the environment. If it takes longer, the process ends. None: no bound."""
    _activity: Activity = field(default_factory=Activity)
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="engine"))
    _playing: int = 0

    async def start(self, listener: socket.socket) -> Server:
        """Starts to listen. Refuses pages of browsers, which send an Origin."""
        from websockets.asyncio.server import serve

        return await serve(self._play, sock=listener, process_request=self._before, origins=[None], compression=None,
                           max_size=MAX_MESSAGE, max_queue=2, server_header=None)

    async def run(self, listener: socket.socket, ready: Callable[[], object]) -> None:
        """Serves until SIGINT, or until SIGTERM, for which it raises SystemExit of 143 as our other servers do.

        `ready` is called once clients can connect.
        """
        heard = asyncio.Queue[int]()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, heard.put_nowait, number)
        with self._watched():  # to the end, because the end waits for the call that is under way
            async with await self.start(listener):
                ready()
                first = await heard.get()
            self._thread.shutdown(cancel_futures=True)
        if first == signal.SIGTERM:
            raise SystemExit(128 + first)

    def _watched(self) -> contextlib.AbstractContextManager[None]:
        if self.call_s is None:
            return contextlib.nullcontext()
        return Watchdog(self._activity, asyncio.get_running_loop(), self.call_s).watching()

    def _before(self, connection: ServerConnection, request: Request) -> Response | None:
        """Answers requests that are no WebSocket's, and refuses clients without the token."""
        path = request.path.partition("?")[0]
        given = request.headers.get("Authorization", "")
        if path in ("/health", "/healthz"):  # OpenEnv's own path, and that of all our servers
            return _json(connection, {"status": "healthy"})
        if self.token is not None and not hmac.compare_digest(given.encode(), f"Bearer {self.token}".encode()):
            return connection.respond(HTTPStatus.UNAUTHORIZED, "this server asks for its bearer token\n")
        if path == "/schema":
            return _json(connection, SCHEMA)
        if path == "/metadata":
            made = self.environment
            return _json(connection, {"name": made.name, "description": f"{made.name} ({made.engine}), played as text",
                                      "version": made.version})
        return None if path == "/ws" else connection.respond(HTTPStatus.NOT_FOUND, "sessions are at /ws\n")

    async def _play(self, connection: ServerConnection) -> None:
        from websockets.exceptions import ConnectionClosed

        if self._playing >= self.limit:
            await connection.send(_error("CAPACITY_REACHED", f"all {self.limit} sessions are taken"))
            return
        self._playing += 1
        play = OpenEnvPlay(self.environment)
        try:
            while True:
                message = await asyncio.wait_for(connection.recv(), self.idle_s)
                if (answer := await self._answer(play, message)) is None:
                    return
                await connection.send(answer)
        except (ConnectionClosed, TimeoutError):
            return
        finally:
            self._playing -= 1
            # A game may take long to close, and must be closed in the thread that plays it.
            await asyncio.get_running_loop().run_in_executor(self._thread, self._inside, play.drop, {})

    async def _answer(self, play: OpenEnvPlay, message: str | bytes) -> str | None:
        """Returns the answer to one message; None ends the session."""
        try:
            asked: Any = msgspec.json.decode(message)
        except NOT_JSON as error:
            return _error("INVALID_JSON", str(error))
        if not isinstance(asked, dict) or not isinstance(data := asked.get("data", {}), dict):
            return _error("VALIDATION_ERROR", 'a message is {"type": ..., "data": {...}}')
        verbs = {"reset": play.reset, "step": play.step, "state": play.state}
        verb: Any = asked.get("type")
        if verb == "close":
            return None
        if not isinstance(verb, str) or verb not in verbs:
            return _error("UNKNOWN_TYPE", f"there is no {verb!r}; send {', '.join(verbs)} or close")
        try:
            reply = await asyncio.get_running_loop().run_in_executor(self._thread, self._inside, verbs[verb], data)
            return msgspec.json.encode({"type": "state" if verb == "state" else "observation", "data": reply}).decode()
        except OpenEnvError as refused:
            return _error(refused.code, str(refused))
        except (Exception, SystemExit) as error:  # a game that leaves by `sys.exit` would end the server
            play.fail(error)
            return _error("EXECUTION_ERROR", f"{type(error).__name__}: {error}")

    def _inside(self, verb: Callable[[dict[str, Any]], dict[str, Any]], data: dict[str, Any]) -> dict[str, Any]:
        with self._activity:
            return verb(data)


def serve_openenv(
    open_environment: Callable[[], Environment], *, host: str, port: int, limit: int, token: str | None, call_s: float,
) -> None:
    """Serves until SIGTERM or SIGINT, and prints the URL when it is ready. Limits as in OpenEnvServer.

    Raises UserError for a port in use, a host that others can reach without a token, missing packages or data.
    """
    check_exposure(host, token, ENV_TOKEN_VARIABLE)
    if importlib.util.find_spec("websockets") is None:
        raise UserError("the package websockets is not installed", "pip install websockets")
    with contextlib.closing(bind(host, port)) as listener, forks_apart(listener):
        made = open_environment()
        url = f"http://{host_port(host, listener.getsockname()[1])}"
        with made if isinstance(made, contextlib.AbstractContextManager) else contextlib.nullcontext():
            asyncio.run(OpenEnvServer(environment=made, limit=limit, token=token, call_s=call_s).run(
                listener, lambda: print(f"serving {made.name} by OpenEnv's protocol on {url}", flush=True)))


def _error(code: str, message: str) -> str:
    return msgspec.json.encode({"type": "error", "data": {"message": utf8(message), "code": code}}).decode()


def _json(connection: ServerConnection, body: dict[str, Any]) -> Response:
    response = connection.respond(HTTPStatus.OK, msgspec.json.encode(body).decode())
    del response.headers["Content-Type"]
    response.headers["Content-Type"] = "application/json"
    return response
