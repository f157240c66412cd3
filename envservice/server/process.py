"""One server process: bind first, so that a taken port is known before anything heavy; then load, then serve.

    SIGTERM, SIGINT     take no connections, finish the requests in flight, end: in DRAIN_S and one call of the engine
    too old, too large  the same, but instead of ending start again on the socket, which goes on listening

Either way sessions are dropped, which costs their clients one replay each and loses nothing; to wait until episodes
end by themselves would take as long as the slowest of them, and a server that leaks may not have that long. To start
again is to execute the same command in the place of this process: its id stays, so neither a supervisor nor a
container sees an end, and connections wait in the socket's queue meanwhile instead of being refused.

Its log (services/telemetry/logs.py) says what it does and what goes wrong. A program that waits for it reads one line
on stdout.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import NoReturn

import uvicorn

from envservice.base import Environment
from envservice.server.app import Settings, create_app
from envservice.server.batches import Batches
from envservice.server.capacity import GIB, own_memory_bytes
from services.errors import UserError
from services.http.server import bind, server_config
from services.process.addresses import is_local
from services.telemetry import tracing
from services.telemetry.logs import get_logger

log = get_logger("server")
DRAIN_S = 8
"""Longest wait for requests in flight; whoever stops a server waits 10 s before it kills. After half of it their
elements that have not begun are refused: a batch of slow ones could take minutes."""
PARENT_POLL_S = 0.5
TEND_S = 0.5
INHERITED = "GAGPO_ENV_LISTENER"
"""Where a server that starts again finds its socket: the number of a file descriptor."""


def check_exposure(host: str, token: str | None) -> None:
    """Raises UserError for a server that others could reach without a token."""
    if token is None and not is_local(host):
        raise UserError(
            f"{host} can be reached by others and there is no token",
            "set GAGPO_ENV_TOKEN here and for the clients, or bind to 127.0.0.1")


def serve(
    environment: Environment | Callable[[], Environment], *, host: str, port: int, settings: Settings,
    exit_with_parent: bool = False,
) -> None:
    """Serves until SIGTERM or SIGINT, which it passes on to the caller's handlers once drained.

    Says its URL when ready: in the log, and on stdout unless that is a terminal. A function in place of the environment
    is called after the port is bound; an environment that is a context manager is left at the end.
    Raises UserError for a port in use, for a host that others can reach when the settings have no token, and for
    an environment that alone is larger than the settings let the process grow.
    """
    check_exposure(host, settings.token)
    parent = os.getppid() if exit_with_parent else None
    log.info("started", host=socket.gethostname(), pid=os.getpid())
    with contextlib.closing(_inherited() or bind(host, port)) as listener:
        made = environment() if callable(environment) else environment
        _check_room(settings)
        with made if isinstance(made, contextlib.AbstractContextManager) else contextlib.nullcontext():
            heir = asyncio.run(_serve(made, listener, settings, parent))
    if heir is not None:
        _start_again(heir)


async def _serve(
    environment: Environment, listener: socket.socket, settings: Settings, parent: int | None,
) -> socket.socket | None:
    """Returns the socket to start again on; None: the end."""
    app = create_app(environment, settings)
    batches: Batches = app.state.batches
    server = _Server(
        server_config(app, local_only=settings.token is None, timeout_graceful_shutdown=DRAIN_S),
        ready=partial(_say_ready, environment, settings, _url(listener)), drain=batches.refuse_more)
    watches = [asyncio.create_task(_tend(server, listener, batches, settings))]
    if parent is not None:
        watches.append(asyncio.create_task(_outlive_no(parent, server)))
    try:
        await server.serve(sockets=[listener])
    finally:
        batches.drop_all()
        for watch in watches:
            watch.cancel()
    for end in await asyncio.gather(*watches, return_exceptions=True):
        if isinstance(end, Exception):
            raise end
    return server.heir


class _Server(uvicorn.Server):
    """Says when it is ready, and when it begins to stop."""

    heir: socket.socket | None = None

    def __init__(self, config: uvicorn.Config, *, ready: Callable[[], None], drain: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready
        self._drain = drain

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        log.info("draining", requests=len(self.server_state.tasks))
        since = time.monotonic()
        refuse = asyncio.get_running_loop().call_later(DRAIN_S / 2, self._drain)
        await super().shutdown(sockets)
        refuse.cancel()
        log.info("drained", seconds=time.monotonic() - since)


def _say_ready(environment: Environment, settings: Settings, url: str) -> None:
    log.info("serving", environment=environment.name, engine=environment.engine, version=environment.version,
             sessions=settings.max_sessions, url=url)
    if not sys.stdout.isatty():  # for the program that waits; a person has just read it
        print(f"serving {environment.name} ({environment.engine} {environment.version}), "
              f"at most {settings.max_sessions} sessions, on {url}", flush=True)


async def _tend(server: _Server, listener: socket.socket, batches: Batches, settings: Settings) -> None:
    """Ends sessions whose lease is over, on an idle server too, and says when the process is to start again."""
    # Servers that were started together shall not be away together.
    age_s = None if settings.recycle_s is None else settings.recycle_s * random.uniform(0.9, 1.1)
    since = time.monotonic()
    try:
        while True:
            await asyncio.sleep(TEND_S)
            await batches.expire()
            if age_s is not None and time.monotonic() - since > age_s:
                reason = f"it is {age_s / 3600:.2f} hours old"
            elif settings.recycle_bytes is not None and own_memory_bytes() > settings.recycle_bytes:
                reason = f"it has grown to {own_memory_bytes() / GIB:.2f} GiB"
            else:
                continue
            log.info("starting again", reason=reason)
            server.heir = listener.dup()
            return
    finally:
        server.should_exit = True  # also where tending fails: what nobody tends must not go on


def _start_again(listener: socket.socket) -> NoReturn:
    """The same command in this process: what leaked is gone, the id and the socket stay."""
    tracing.stop()  # spans that wait would go with what leaked
    listener.set_inheritable(True)
    os.environ[INHERITED] = str(listener.fileno())
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - our own command line, no shell


def _inherited() -> socket.socket | None:
    """The socket that this process has been listening on since before it started again."""
    number = os.environ.pop(INHERITED, None)
    if number is None:
        return None
    listener = socket.socket(fileno=int(number))
    listener.set_inheritable(False)
    return listener


def _check_room(settings: Settings) -> None:
    taken = own_memory_bytes()
    if settings.recycle_bytes is not None and taken >= settings.recycle_bytes:
        raise UserError(f"the server takes {taken / GIB:.2f} GiB before its first session, and env.recycle_gb is "
                        f"{settings.recycle_bytes / GIB:.2f}", f"set it to {2 * taken / GIB:.2f} or more")


async def _outlive_no(parent: int, server: uvicorn.Server) -> None:
    while os.getppid() == parent:  # noqa: ASYNC110 - the death of a parent raises no event
        await asyncio.sleep(PARENT_POLL_S)
    log.info("the process that started this one has ended")
    server.should_exit = True


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
