"""One server process. It binds first, so that a taken port is found before anything heavy; then it loads and serves.

It listens only once it has loaded. Until then clients are refused, so they ask another server, and the run does not
take it for ready.

    SIGTERM, SIGINT     refuse connections, finish the requests in flight, end: in DRAIN_S and one call of the engine
    too old, too large  the same, but restart instead of ending, on the socket, which keeps listening
    a call hangs        end at once (watchdog.py)

All of these drop the sessions. That costs each episode one replay; only a live one is lost, so the server of a live
environment refuses to restart itself. Waiting for episodes to end would take as long as the slowest one, and a leaking
server may not have that time. A restart executes the same command in this process: its id stays, so a supervisor or a
container sees no end, and new connections wait in the socket's queue.

It logs what it does and what fails (services/telemetry/logs.py). A program that waits for it reads one line on stdout.
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
from envservice.server.capacity import own_memory_bytes
from envservice.server.watchdog import Activity, Watchdog
from services.amounts import GIB, number_of
from services.config.secrets import ENV_TOKEN_VARIABLE
from services.errors import UserError
from services.http.server import Server, listen, reserve, server_config
from services.process.addresses import check_exposure, host_port
from services.process.forks import forks_apart
from services.telemetry.logs import get_logger

log = get_logger("server")
DRAIN_S = 8
"""Longest wait for requests in flight, less than the 10 s after which a supervisor kills. After half of it, elements
that have not begun are refused: a batch of slow ones could take minutes."""
PARENT_POLL_S = 0.5
MAINTAIN_S = 0.5
INHERITED = "GAGPO_ENV_LISTENER"
"""The environment variable with the file descriptor of the socket, for a server that restarts itself."""


def serve(
    environment: Environment | Callable[[], Environment], *, host: str, port: int, settings: Settings,
    parent: int | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT. After draining it passes the signal to the caller's handlers.

    When it is ready it writes its URL to the log, and to stdout unless that is a terminal. If `environment` is a
    function, it is called after the port is bound. If the environment is a context manager, it is exited at the end.
    `parent` is the id of the process that started this one and holds the port for it; the server ends when that process
    does. The id is passed and not looked up, since a parent that died while this process was starting has no id here.
    Raises UserError for a port in use, for a host that others can reach without a token, if the process is larger than
    `recycle_bytes` before its first session, and for a live environment in a process that restarts itself.
    """
    check_exposure(host, settings.token, ENV_TOKEN_VARIABLE)
    log.info("started", host=socket.gethostname(), pid=os.getpid())
    if _orphaned(parent):
        return
    with contextlib.closing(_inherited() or reserve(host, port, held=parent is not None)) as listener, \
            forks_apart(listener):
        made = environment() if callable(environment) else environment
        _check_room(settings)
        _check_ends(made, settings)
        with made if isinstance(made, contextlib.AbstractContextManager) else contextlib.nullcontext():
            listen(listener)
            restart_socket = asyncio.run(_serve(made, listener, settings, parent))
    if restart_socket is not None:
        _start_again(restart_socket)


async def _serve(
    environment: Environment, listener: socket.socket, settings: Settings, parent: int | None,
) -> socket.socket | None:
    """Serves until the process should end or restart. Returns the socket for a restart, else None."""
    app = create_app(environment, settings)
    batches: Batches = app.state.batches
    server = _Server(
        server_config(app, local_only=settings.token is None, timeout_graceful_shutdown=DRAIN_S),
        ready=partial(_say_ready, environment, settings, _url(listener)), drain=batches.refuse_more)
    watches = [asyncio.create_task(_maintain(server, listener, batches, settings))]
    if parent is not None:
        watches.append(asyncio.create_task(_end_with_parent(parent, server)))
    try:
        with _watched(app.state.activity, settings):
            await server.serve(sockets=[listener])
    finally:
        batches.drop_all()
        for watch in watches:
            watch.cancel()
    for end in await asyncio.gather(*watches, return_exceptions=True):
        if isinstance(end, Exception):
            raise end
    return server.restart_socket


def _watched(activity: Activity, settings: Settings) -> contextlib.AbstractContextManager[None]:
    if settings.call_s is None:
        return contextlib.nullcontext()
    return Watchdog(activity, asyncio.get_running_loop(), settings.call_s).watching()


class _Server(Server):
    """A server that reports when it is ready and when it begins to stop."""

    restart_socket: socket.socket | None = None

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
    if not sys.stdout.isatty():  # for a waiting program; a person has just read it in the log
        print(f"serving {environment.name} ({environment.engine} {environment.version}), "
              f"at most {number_of(settings.max_sessions, 'session')}, on {url}", flush=True)


async def _maintain(server: _Server, listener: socket.socket, batches: Batches, settings: Settings) -> None:
    """Drops sessions whose lease has ended, also on an idle server. Returns when the process should restart."""
    # Servers that were started together must not restart together.
    age_s = None if settings.recycle_s is None else settings.recycle_s * random.uniform(0.9, 1.1)
    since = time.monotonic()
    try:
        while True:
            await asyncio.sleep(MAINTAIN_S)
            await batches.expire()
            if age_s is not None and time.monotonic() - since > age_s:
                reason = f"it is {age_s / 3600:.2f} hours old"
            elif settings.recycle_bytes is not None and own_memory_bytes() > settings.recycle_bytes:
                reason = f"it has grown to {own_memory_bytes() / GIB:.2f} GiB"
            else:
                continue
            log.info("starting again", reason=reason)
            server.restart_socket = listener.dup()
            return
    finally:
        server.should_exit = True  # also if this fails: no lease would ever end


def _start_again(listener: socket.socket) -> NoReturn:
    """Executes the same command in this process. That frees leaked memory; the process id and the socket stay."""
    listener.set_inheritable(True)
    os.environ[INHERITED] = str(listener.fileno())
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - our own command line, no shell


def _inherited() -> socket.socket | None:
    """Returns the socket on which this process listened before it restarted, or None."""
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


def _check_ends(environment: Environment, settings: Settings) -> None:
    if environment.replay == "live" and (settings.recycle_s is not None or settings.recycle_bytes is not None):
        raise UserError(f"{environment.name} is live, so nobody can rebuild the sessions of a server that starts again",
                        "leave env.recycle_hours and env.recycle_gb out")


def _orphaned(parent: int | None) -> bool:
    if parent is None or os.getppid() == parent:
        return False
    log.info("the process that started this one has ended", parent=parent)
    return True


async def _end_with_parent(parent: int, server: Server) -> None:
    while not _orphaned(parent):  # noqa: ASYNC110 - the death of a parent raises no event
        await asyncio.sleep(PARENT_POLL_S)
    server.should_exit = True


def _url(listener: socket.socket) -> str:
    return f"http://{host_port(*listener.getsockname()[:2])}"
