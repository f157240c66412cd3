"""Listens for and serves every HTTP endpoint of ours, with bounded heads, requests in work and logs.

Not covered: a client may connect and send nothing, or a byte now and then, for as long as it likes. uvicorn has no
deadline for that, so it is for a proxy in front (SECURITY.md).
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import uvicorn
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.errors import UserError
from services.process.addresses import family_of, host_port, is_local

# Refuses requests beyond a server's capacity, and those that a web page sends to a server on the reader's machine.
#
# If a server has too many requests in work, the next one gets 503, whose Retry-After says when to ask again.
#
# A browser lets any page send a request to 127.0.0.1. Three headers tell such a request from a program's:
#
#     Host            421 if it names another machine: a page's own name that resolves to this one (DNS rebinding)
#     Origin          403 if it is another server's: a page of that server sent the request (CSRF)
#     Content-Type    415 unless it is JSON: pages can send forms and plain text without asking
#
# An Upgrade, such as to a websocket, is refused with 400: we speak only HTTP/1.1, and parsers read nothing after it.

READS = ("GET", "HEAD", "OPTIONS")
RETRY_AFTER_S = 1
"""Seconds after which a request that found no capacity may be sent again."""


class Admission:
    """Wraps an entire application.

    `local_only`: the server has no token, so it answers only a Host of this machine. `capacity`: most requests in work.
    """

    def __init__(self, app: ASGIApp, *, local_only: bool, capacity: int) -> None:
        self._app, self._local_only, self._capacity = app, local_only, capacity
        self._in_work = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is not None:
            status, text = refusal
            headers = {"connection": "close"} | ({"retry-after": str(RETRY_AFTER_S)} if status == 503 else {})
            await PlainTextResponse(text, status, headers)(scope, receive, send)
            return
        self._in_work += 1
        try:
            await self._app(scope, receive, send)
        except ClientDisconnect:
            return  # the client left before the answer, which is not an error of the server
        finally:
            self._in_work -= 1

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        host, origin, kind = headers.get(b"host", b""), headers.get(b"origin"), headers.get(b"content-type")
        if self._local_only and not names_this_machine(host):
            return 421, f"this server has no token, so it answers only to localhost, not to {host.decode('latin-1')!r}"
        if origin is not None and origin.partition(b"://")[2] != host:
            return 403, f"pages of {origin.decode('latin-1')!r} may not use this server"
        if kind is not None and scope["method"] not in READS and kind.partition(b";")[0].strip() != b"application/json":
            return 415, f"send application/json instead of {kind.decode('latin-1')!r}"
        if b"upgrade" in headers:
            return 400, "this server speaks only HTTP/1.1, so send no Upgrade"
        if self._in_work >= self._capacity:
            return 503, "too many requests are in work"
        return None


@lru_cache(maxsize=64)  # parsing an address costs more than everything else here
def names_this_machine(host: bytes) -> bool:
    """Returns whether a Host header, with or without a port, is a loopback address or localhost."""
    try:
        return is_local(urlsplit(f"//{host.decode('latin-1')}").hostname or "")
    except ValueError:
        return False


class BodyLimit:
    """Middleware: an application that reads more than `most` bytes of one request's body gets a 413."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app, self._most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = 0

        async def bounded() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._most:
                raise HTTPException(413, f"the body has more than {self._most} bytes")
            return message

        await self._app(scope, bounded, send)


BACKLOG = 1024
MAX_HEAD = 32 * 1024
"""Most bytes of a request's line and headers. Our own clients send less than 1 KiB; a proxy may add to it."""
KEEP_ALIVE_S = 75
"""Seconds for which a connection may wait for its next request."""
MAX_REQUESTS = 1024
"""Most requests in work. Fewer if the process may open few descriptors."""
MIN_REQUESTS = 8
DESCRIPTORS = 16384
"""Descriptors that a server's process may open, if its hard limit allows them. A shell's soft limit is often 1024."""
STOP_S = 2
"""Seconds to wait for open requests when an endpoint in a thread ends."""
LATE_S = 0.5
"""Seconds in which a connection that came late may send its request, while the server ends."""
LINES_A_MINUTE = 20
LOGGERS = ("uvicorn.error", "asyncio")
"""Loggers whose output a client can cause: by broken or aborted requests, or very many connections."""


def bind(host: str, port: int) -> socket.socket:
    """Returns a listening socket; port 0 takes a free port. Raises UserError if the address is not available."""
    listener = reserve(host, port)
    listen(listener)
    return listener


def reserve(host: str, port: int, *, held: bool = False) -> socket.socket:
    """Returns a socket as `bind` does, but one that refuses connections until `listen`.

    For a server that loads for long: who connects to it meanwhile is to ask another one, and nobody takes it for ready.
    `held`: the port is one that another process of this user holds for it (held_port).
    """
    if not 0 <= port < 1 << 16:
        raise UserError(f"there is no port {port}", "choose a --port from 1 to 65535, or 0 for a free one")
    listener = socket.socket(family_of(host))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if held:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    # Accepted sockets inherit this. Without it the body of a reply waits 40 ms for the delayed ACK of its head.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise _taken((host, port), error) from None
    return listener


def listen(listener: socket.socket) -> None:
    """Lets a reserved socket accept connections. Raises UserError if another one listens at its address by now."""
    address = listener.getsockname()[:2]
    try:
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _taken(address, error) from None


def _taken(address: tuple[str, int], error: OSError) -> UserError:
    return UserError(f"cannot listen on {host_port(*address)}: {error.strerror}",
                     "choose another --port, or 0 for a free one")


def server_config(app: ASGIApp, *, local_only: bool, **options: Any) -> uvicorn.Config:
    """Returns the uvicorn config of a server of `app`. `local_only`: see Admission; `options` are uvicorn's.

    Raises this process's limit of descriptors: each connection holds one, and without a free one it is reset.
    """
    _raise_descriptor_limit()
    for name in LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(one, BoundedLog) for one in logger.filters):
            logger.addFilter(BoundedLog())
    return uvicorn.Config(
        Admission(app, local_only=local_only, capacity=_request_limit()), http=_parser(),
        h11_max_incomplete_event_size=MAX_HEAD, timeout_keep_alive=KEEP_ALIVE_S, ws="none", lifespan="off",
        log_config=None, log_level="warning", access_log=False, **options)


def _parser() -> type[asyncio.Protocol] | Literal["h11"]:
    """Returns uvicorn's httptools with a bound of heads; where it is not installed h11, which has a bound of its own.

    h11 takes 1.5 times the CPU time for a short request.
    """
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        return "h11"

    class BoundedHeads(HttpToolsProtocol):
        """Closes a connection whose head is larger than MAX_HEAD: httptools keeps headers for as long as they come."""

        in_head, head_bytes = True, 0

        def on_message_begin(self) -> None:
            self.in_head, self.head_bytes = True, 0
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self.in_head = False
            super().on_headers_complete()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.head_bytes += len(data) if self.in_head else 0
            if self.head_bytes > MAX_HEAD and self.in_head and not self.transport.is_closing():
                self.send_400_response("The head is too large.")

    return BoundedHeads


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _request_limit() -> int:
    """Returns the most requests in work that leave half of this process's free descriptors to everything else."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = allowed - sum(1 for _ in Path("/proc/self/fd").iterdir())
    return max(MIN_REQUESTS, min(MAX_REQUESTS, free // 2))


class Server(uvicorn.Server):
    """uvicorn's server, which at its end also asks late connections to close.

    The loop may have accepted a connection when the listener closes. uvicorn does not say so, and the server would wait
    for it until timeout_graceful_shutdown.
    """

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends the requests that are open, within timeout_graceful_shutdown."""
        closing = asyncio.create_task(self._close_late())
        await super().shutdown(sockets)
        closing.cancel()

    async def _close_late(self) -> None:
        while True:
            await asyncio.sleep(LATE_S)
            for connection in list(self.server_state.connections):
                if not connection.transport.is_closing():
                    connection.shutdown()


@contextmanager
def serving_in_thread(app: ASGIApp, listener: socket.socket, *, local_only: bool, name: str) -> Iterator[None]:
    """Serves `app` from a thread until the block ends, then closes the listener."""
    server = Server(server_config(app, local_only=local_only, timeout_graceful_shutdown=STOP_S))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name=name, daemon=True)
    with closing(listener):
        thread.start()
        try:
            yield
        finally:
            server.should_exit = True
            thread.join(3 * STOP_S)


class BoundedLog(logging.Filter):
    """Lets a bounded number of lines through each minute. The first line of the next minute says how many were dropped.

    An error of the network or the machine, such as too many open files, is logged without a traceback.
    """

    def __init__(self) -> None:
        super().__init__()
        self._since, self._written, self._left_out = 0.0, 0, 0

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if now - self._since >= 60:
            self._since, self._written, left_out, self._left_out = now, 0, self._left_out, 0
        else:
            left_out = 0
        self._written += 1
        if self._written > LINES_A_MINUTE:
            self._left_out += 1
            return False
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, OSError):
            record.msg, record.args = f"{record.getMessage().splitlines()[0]}: {error}", ()
            record.exc_info = record.exc_text = None
        if left_out:
            record.msg, record.args = f"{record.getMessage()} ({left_out} lines before this one were left out)", ()
        return True
