"""Logs that clients can make a server write are bounded, and a server that ends closes every connection."""

from __future__ import annotations

import asyncio
import errno
import logging
import re
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from services.errors import UserError
from services.http import server
from services.http.server import LINES_A_MINUTE, BoundedLog, Server, bind, listen, reserve

ROOT = Path(__file__).parents[4]


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def logger():
    logger = logging.Logger("of one test")
    logger.addFilter(BoundedLog())
    logger.addHandler(Kept())
    return logger


def test_a_flood_is_cut_off_and_counted(logger, monkeypatch):
    now = 100.0
    monkeypatch.setattr(server.time, "monotonic", lambda: now)
    for number in range(1000):
        logger.warning("line %d", number)
    assert len(logger.handlers[0].records) == LINES_A_MINUTE
    now += 61
    logger.warning("a minute later")
    logger.warning("and again")
    assert [record.getMessage() for record in logger.handlers[0].records[LINES_A_MINUTE:]] == [
        f"a minute later ({1000 - LINES_A_MINUTE} lines before this one were left out)", "and again"]


def test_too_many_open_files_is_one_line(logger):
    try:
        raise OSError(errno.EMFILE, "Too many open files")
    except OSError:
        logger.exception("socket.accept() out of system resource\nsocket: <fd 7>")
    (record,) = logger.handlers[0].records
    assert logging.Formatter().format(record) == (
        "socket.accept() out of system resource: [Errno 24] Too many open files")


def test_a_mistake_of_ours_keeps_its_traceback(logger):
    try:
        raise KeyError("x")
    except KeyError:
        logger.exception("Exception in ASGI application")
    (record,) = logger.handlers[0].records
    assert "Traceback" in logging.Formatter().format(record)


@pytest.mark.parametrize("port", [99999, -1])
def test_a_port_that_there_is_not_is_one_line(port: int):
    with pytest.raises(UserError, match=f"there is no port {port}; choose a --port"):
        bind("127.0.0.1", port)


def test_a_reserved_address_refuses_connections_until_its_server_listens():
    with reserve("127.0.0.1", 0) as first, reserve("127.0.0.1", first.getsockname()[1]) as second:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(first.getsockname(), 60)
        listen(first)
        socket.create_connection(first.getsockname(), 60).close()
        with pytest.raises(UserError, match=f"listen on 127.0.0.1:{first.getsockname()[1]}: .* in use; choose another"):
            listen(second)


FEW_DESCRIPTORS = """
import resource, sys
from starlette.responses import PlainTextResponse
from services.http.server import bind, serving_in_thread
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
listener = bind("127.0.0.1", 0)
with serving_in_thread(PlainTextResponse("in"), listener, local_only=True, name="server"):
    print(listener.getsockname()[1], flush=True)
    sys.stdin.read()
"""


@pytest.mark.attack
def test_more_connections_than_the_soft_limit_of_descriptors_are_answered():
    with subprocess.Popen([sys.executable, "-c", FEW_DESCRIPTORS], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as process, ExitStack() as idle:
        address = ("127.0.0.1", int(process.stdout.readline()))
        for _ in range(100):
            idle.enter_context(socket.create_connection(address, 60))
        with socket.create_connection(address, 60) as client:
            client.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 200")
        process.stdin.close()


@pytest.mark.attack
def test_every_server_of_ours_listens_with_the_limits_of_this_folder():
    """Environment servers, the explorer, metrics, agents' endpoints and retrieval: one way to make a server."""
    makers = re.compile(r"uvicorn\.(Config\(|run\()|import http\.server|start_http_server|start_server\(|socketserver")
    made = {str(file.relative_to(ROOT)) for folder in ("services", "envservice", "rollout", "learner", "deploy")
            for file in (ROOT / folder).rglob("*.py") if makers.search(file.read_text())}
    assert made == {"services/http/server.py"}

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
