"""A server that ends closes every connection, also one that the loop had accepted when the listener closed."""

from __future__ import annotations

import asyncio
import socket

import httpx
import pytest
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from services.http.server import Server, bind

ASK = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n"


class Slow:
    """An application whose first answer waits for `release`."""

    def __init__(self) -> None:
        self.working, self.release = asyncio.Event(), asyncio.Event()

    async def __call__(self, scope, receive, send) -> None:
        if scope["path"] == "/slow":
            self.working.set()
            await self.release.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


async def accept_late(server: Server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connects a client as the loop does with a connection that waited when the listener closed."""
    ours, theirs = socket.socketpair()
    await asyncio.get_running_loop().connect_accepted_socket(
        lambda: server.config.http_protocol_class(
            config=server.config, server_state=server.server_state, app_state={}), ours)
    return await asyncio.open_connection(sock=theirs)


@pytest.mark.parametrize("parser", [H11Protocol, HttpToolsProtocol], ids=lambda parser: parser.__name__)
async def test_late_connections_are_answered_and_then_closed(parser):
    slow, listener = Slow(), bind("127.0.0.1", 0)
    server = Server(uvicorn.Config(slow, http=parser, ws="none", lifespan="off", interface="asgi3", log_config=None,
                                   timeout_graceful_shutdown=250))
    life = asyncio.create_task(server.serve(sockets=[listener]))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=120) as client:
        asked = asyncio.create_task(client.get("/slow"))
        await slow.working.wait()
        server.should_exit = True
        while server.servers[0].is_serving():  # noqa: ASYNC110 - uvicorn tells nobody
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        silent, asking = await accept_late(server), await accept_late(server)
        asking[1].write(ASK)
        assert (await asking[0].read()).endswith(b"ok")
        assert await silent[0].read() == b""
        slow.release.set()
        assert (await asked).text == "ok"
        await asyncio.wait_for(life, 120)
    for _, writer in (silent, asking):
        writer.close()
