"""Limits and deadlines of a connection, with each of the parsers, over real sockets and a small application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
import uvicorn

from services.http import connections, protocol
from services.http.connections import Connections, Waits
from services.http.protocol import MAX_HEAD, ConnectionLimits, LimitedH11, LimitedProtocol, limited
from services.http.server import bind

pytestmark = pytest.mark.attack

PARSERS = list(dict.fromkeys((LimitedH11, LimitedProtocol)))
GET = b"GET / HTTP/1.1\r\nhost: x\r\n"
POST = b"POST / HTTP/1.1\r\nhost: x\r\n"
Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Awaitable[Client]]


class Endpoint:
    """An endpoint that answers once it has the whole body, or at once, or when `release` is set."""

    def __init__(self, parser: type[ConnectionLimits], limit: int, **options: float) -> None:
        self.table = Connections(limit, **options)
        self.parser = parser
        self.working = asyncio.Event()
        self.release = asyncio.Event()
        self.port = 0

    async def application(self, scope, receive, send) -> None:
        if scope["path"] == "/slow":
            self.working.set()
            await self.release.wait()
        elif scope["path"] != "/unread":
            while (await receive()).get("more_body"):
                pass
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async def connect(self) -> Client:
        return await asyncio.open_connection("127.0.0.1", self.port)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Endpoint]:
        listener = bind("127.0.0.1", 0)
        self.port = listener.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(
            self.application, http=limited(self.table, self.parser), ws="none", lifespan="off",
            interface="asgi3", log_config=None))
        life = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            async with asyncio.timeout(120):
                yield self
        finally:
            self.release.set()
            server.should_exit = True
            await life
            listener.close()


@pytest.fixture(params=PARSERS, ids=lambda parser: parser.__name__)
def parser(request) -> type[ConnectionLimits]:
    return request.param


@pytest.fixture
def quick(monkeypatch):
    """Deadlines that a test can wait for."""
    monkeypatch.setattr(connections, "SWEEP_S", 0.02)
    for waits in Waits:
        monkeypatch.setitem(connections.DEADLINES, waits, 0.1)


async def status(client: Client) -> bytes:
    return (await client[0].readline()).split(b" ")[1]


async def closed(client: Client) -> bool:
    """Waits for the end; the endpoint may reset the connection."""
    with suppress(ConnectionError):
        await client[0].read()
    return True


@pytest.mark.parametrize("endless", [b"GET /" + b"a" * 4096, GET + b"x: " + b"a" * 4096, GET + b"x: y\r\n" * 700])
async def test_a_head_without_end_is_refused(parser, endless):
    async with Endpoint(parser, 10).serving() as endpoint:
        client = await endpoint.connect()
        client[1].write(endless)
        sent, more = len(endless), endless[-4096:]
        while sent < MAX_HEAD:
            client[1].write(more)
            sent += len(more)
        await client[1].drain()
        assert await status(client) in (b"431", b"400")  # 400: h11 counts for itself
        assert await closed(client)


async def test_a_large_body_behind_a_small_head_is_read_whole(parser):
    async with Endpoint(parser, 10).serving() as endpoint:
        client = await endpoint.connect()
        for _ in range(2):  # a second one on the same connection: the first left no count behind
            client[1].write(POST + b"content-length: %d\r\n\r\n" % (8 * MAX_HEAD) + b"a" * 8 * MAX_HEAD)
            assert await status(client) == b"200"
            assert (await client[0].readuntil(b"\r\n\r\n"), await client[0].readexactly(2))[1] == b"ok"


async def test_a_message_without_end_is_cut_off(parser, monkeypatch):
    monkeypatch.setattr(protocol, "MAX_MESSAGE", 100_000)
    async with Endpoint(parser, 10).serving() as endpoint:
        client = await endpoint.connect()
        client[1].write(POST + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 40_000)
        assert await closed(client)


@pytest.mark.parametrize("sent", [b"", b"GET / HT", GET, POST + b"content-length: 9\r\n\r\nabc",
                                  b"POST /unread HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nabc"])
async def test_a_client_that_keeps_the_endpoint_waiting_is_cut_off(parser, quick, sent):
    async with Endpoint(parser, 10).serving() as endpoint:
        client = await endpoint.connect()
        client[1].write(sent)
        assert await closed(client)
        assert len(endpoint.table) == 0


async def test_a_request_in_work_has_no_deadline_of_the_connection(parser, quick):
    async with Endpoint(parser, 10).serving() as endpoint:
        client, idle = await endpoint.connect(), await endpoint.connect()
        client[1].write(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
        await endpoint.working.wait()
        assert await closed(idle)  # all deadlines have passed
        endpoint.release.set()
        assert await status(client) == b"200"


async def test_half_open_connections_make_way_for_a_new_one(parser):
    async with Endpoint(parser, 8).serving() as endpoint:
        first, *others = [await endpoint.connect() for _ in range(4)]  # half of all: what one address may hold
        for client in (first, *others):
            client[1].write(b"GET / HT")
        last = await endpoint.connect()
        last[1].write(GET + b"\r\n")
        assert await status(last) == b"200"
        assert await closed(first), "it had waited longest"
        others[0][1].write(b"TP/1.1\r\nhost: x\r\n\r\n")
        assert await status(others[0]) == b"200"


async def test_clients_of_one_machine_may_hold_all_connections(parser):
    """Hundreds of calls at once of a worker's own agents met the half that is left to other addresses."""
    async with Endpoint(parser, 4, share=1.0).serving() as endpoint:
        clients = [await endpoint.connect() for _ in range(4)]
        for client in clients:
            client[1].write(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
        await endpoint.working.wait()
        endpoint.release.set()
        assert [await status(client) for client in clients] == [b"200"] * 4


async def test_a_new_connection_is_refused_when_all_are_in_work(parser):
    async with Endpoint(parser, 2).serving() as endpoint:
        busy = await endpoint.connect()
        busy[1].write(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
        await endpoint.working.wait()
        assert await status(await endpoint.connect()) == b"503"
        endpoint.release.set()
        assert await status(busy) == b"200"
