"""uvicorn's protocol with limits on what a client may send: a bounded head, a bounded message, and deadlines.

uvicorn limits none of these with the httptools parser, which it uses if it is installed (vLLM installs it; images of
environment servers have h11). So bytes are counted before a parser sees them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from services.http.connections import Connections, Waits

MAX_HEAD = 32 * 1024
"""Most bytes of a request's line and headers. Our own clients send less than 1 KiB; a proxy may add to it."""
MAX_MESSAGE = 16 * 1024 * 1024
"""Most bytes of a request, chunk headers included. Applications have lower limits of their own."""
TOO_LARGE = ("431 Request Header Fields Too Large", f"the head of a request may have at most {MAX_HEAD} bytes")
TOO_MANY = ("503 Service Unavailable", "all connections are taken")
_NOWHERE: Any = deque(maxlen=0)
"""Discards trailers (headers after a body): nobody reads them, and a client could send millions."""
_Uvicorn: Any = object  # the type checker knows neither of the two bases here


class ConnectionLimits(_Uvicorn):
    """One connection, as a mixin for uvicorn's protocols. `limited` sets the table that counts it."""

    table: Connections
    overdue = False
    arriving = False
    """Whether the body of a request is being sent."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.peer: str = self.client[0] if self.client else ""
        self.since: float = self.loop.time()
        self._head = self._message = 0
        if not self.table.admit(self):
            self._refuse(TOO_MANY)

    def connection_lost(self, exc: Exception | None) -> None:
        self.table.remove(self)
        super().connection_lost(exc)

    @property
    def waits(self) -> Waits | None:
        """See connections.TrackedConnection."""
        if self.arriving:
            return Waits.BODY
        if self.cycle is None or self._head:
            return Waits.HEAD
        return Waits.REQUEST if self.cycle.response_complete else None

    def drop(self) -> None:
        """Closes without sending the rest: a client that does not read must not keep its connection."""
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Passes at most MAX_HEAD bytes of a head on, so that no parser collects an endless one."""
        if self.arriving:
            self._message += len(data)
            if self._message > MAX_MESSAGE:
                self.drop()
            else:
                super().data_received(data)
            return
        if not self._head:
            self.since = self.loop.time()
        room, known = MAX_HEAD - self._head, self.cycle
        super().data_received(data if len(data) <= room else data[:room])
        if self.cycle is not known:
            self._head = self._message = 0
        else:
            self._head += min(len(data), room)
        if self.transport.is_closing():
            return
        if self._head >= MAX_HEAD:
            self._refuse(TOO_LARGE)
        elif len(data) > room:
            self.data_received(data[room:])

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        super().on_response_complete()

    def _refuse(self, refusal: tuple[str, str]) -> None:
        status, text = refusal
        self.transport.write(f"HTTP/1.1 {status}\r\ncontent-type: text/plain\r\ncontent-length: {len(text)}\r\n"
                             f"retry-after: 1\r\nconnection: close\r\n\r\n{text}".encode())
        self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Logs nothing: admission.py refuses the request, and a client could write a log full of advice."""


class LimitedH11(ConnectionLimits, H11Protocol):
    """The connection with the h11 parser, which is always installed."""

    @property
    def arriving(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.conn.their_state is h11.SEND_BODY


LimitedProtocol: type[ConnectionLimits] = LimitedH11
with suppress(ImportError):
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class LimitedHttpTools(ConnectionLimits, HttpToolsProtocol):
        """The connection with the httptools parser, which is faster."""

        def on_headers_complete(self) -> None:
            self.arriving = True
            super().on_headers_complete()
            self.headers = _NOWHERE

        def on_message_complete(self) -> None:
            self.arriving = False
            super().on_message_complete()

    LimitedProtocol = LimitedHttpTools


def limited(table: Connections, protocol: type[ConnectionLimits] = LimitedProtocol) -> type[asyncio.Protocol]:
    """The protocol class of one endpoint, whose connections `table` counts."""
    return type("Limited", (protocol,), {"table": table})
