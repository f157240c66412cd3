"""Messages between a worker and its vLLM process: msgpack, with the length before it."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import msgspec

_HEAD = 4
"""Bytes of the length of a message, big-endian."""


class Stream:
    """One end of a pair of connected sockets."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Stream:
        """Returns a stream that owns the socket, in the running loop."""
        return cls(*await asyncio.open_connection(sock=end))

    async def read(self) -> list[Any] | None:
        """Returns the next message; None if the other side has ended."""
        try:
            size = int.from_bytes(await self._reader.readexactly(_HEAD), "big")
            return msgspec.msgpack.decode(await self._reader.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    def send(self, message: list[Any]) -> None:
        """Sends a message. It is lost if the other side has ended, which `read` tells."""
        body = msgspec.msgpack.encode(message)
        self._writer.write(len(body).to_bytes(_HEAD, "big") + body)

    def close(self) -> None:
        """Closes the socket."""
        self._writer.close()
