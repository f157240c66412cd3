"""A TCP proxy between two parts of a run that can make the network between them bad."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from typing import Literal

Trouble = Literal["latency", "reset", "half-open", "truncated"]
TROUBLES: tuple[Trouble, ...] = ("latency", "reset", "half-open", "truncated")
CHUNK = 65536
LATENCY_S = 0.3
RESET_LINGER = struct.pack("ii", 1, 0)


class FaultyProxy(threading.Thread):
    """Forwards `127.0.0.1:port` to `target`. While `trouble` is set, each chunk meets it:

    latency    it waits up to LATENCY_S
    reset      the connection is reset, and so is each new one
    half-open  it is swallowed, and nobody is told
    truncated  half of it passes, then the connection is closed
    """

    def __init__(self, target: tuple[str, int]) -> None:
        super().__init__(name="faulty proxy", daemon=True)
        self._target = target
        self.trouble: Trouble | None = None
        self.met = 0
        """Chunks and connections that met trouble."""
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()  # so that nobody is refused before the thread runs
        self._listener = listener
        self.port: int = listener.getsockname()[1]
        self._links: set[asyncio.Task[None]] = set()

    def run(self) -> None:
        """Serves until the process ends."""
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._link, sock=self._listener)
        await server.serve_forever()

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            if self.trouble == "reset":
                self.met += 1
                _reset(writer)
                return
            far_reader, far_writer = await asyncio.open_connection(*self._target)
            ways = [asyncio.create_task(self._pass(reader, far_writer)),
                    asyncio.create_task(self._pass(far_reader, writer))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                far_writer.close()
        writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            trouble = self.trouble
            self.met += trouble is not None
            if trouble == "latency":
                await asyncio.sleep(random.random() * LATENCY_S)
            elif trouble == "half-open":
                continue
            elif trouble == "reset":
                _reset(writer)
                return
            elif trouble == "truncated":
                data = data[: len(data) // 2]
            writer.write(data)
            await writer.drain()
            if trouble == "truncated":
                return


def _reset(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_LINGER)
    writer.close()
