"""One server process: bind first, so that a taken port is known before anything heavy; then load, then serve.

SIGTERM and SIGINT stop taking connections, let requests in flight finish, and end the process; sessions are dropped,
which costs their clients one replay each.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
from collections.abc import Callable

import uvicorn

from envservice.app import Settings, create_app
from envservice.base import Environment
from services.errors import UserError

DRAIN_S = 10
"""Longest wait for requests in flight when the server is told to stop."""
PARENT_POLL_S = 0.5


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises UserError where the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Accepted sockets inherit it. Without it the body of a reply waits 40 ms for the delayed ACK of its head.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise UserError(
            f"cannot listen on {host}:{port}: {error.strerror}", "choose another --port, or 0 for a free one") from None
    return listener


def check_exposure(host: str, token: str | None) -> None:
    """Raises UserError for a server that others could reach without a token."""
    if token is None and not _is_local(host):
        raise UserError(
            f"{host} can be reached by others and there is no token",
            "set GAGPO_ENV_TOKEN here and for the clients, or bind to 127.0.0.1")


def serve(
    environment: Environment | Callable[[], Environment], *, host: str, port: int, settings: Settings,
    exit_with_parent: bool = False,
) -> None:
    """Serves until SIGTERM or SIGINT, which it passes on to the caller's handlers once drained.

    Prints one line with the URL when ready. A function in place of the environment is called after the port is bound.
    Raises UserError for a port in use, and for a host that others can reach when the settings have no token.
    """
    check_exposure(host, settings.token)
    parent = os.getppid() if exit_with_parent else None
    with contextlib.closing(bind(host, port)) as listener:
        made = environment() if callable(environment) else environment
        asyncio.run(_serve(made, listener, settings, parent))


async def _serve(environment: Environment, listener: socket.socket, settings: Settings, parent: int | None) -> None:
    server = _Server(uvicorn.Config(
        create_app(environment, settings), log_level="warning", access_log=False, lifespan="off",
        timeout_graceful_shutdown=DRAIN_S, timeout_keep_alive=75))
    server.ready = f"serving {environment.name} ({environment.engine} {environment.version}) on {_url(listener)}"
    watch = None if parent is None else asyncio.create_task(_outlive_no(parent, server))
    await server.serve(sockets=[listener])
    if watch is not None:
        watch.cancel()


class _Server(uvicorn.Server):
    """Says when it is ready."""

    ready = ""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        print(self.ready, flush=True)


async def _outlive_no(parent: int, server: uvicorn.Server) -> None:
    while os.getppid() == parent:  # noqa: ASYNC110 - the death of a parent raises no event
        await asyncio.sleep(PARENT_POLL_S)
    server.should_exit = True


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
