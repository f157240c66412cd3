"""A server that holds the answers to some requests and gives all others at once."""

import asyncio
from collections.abc import Callable

import httpx


async def answer_beside_held(count: int, client: Callable[[str], httpx.AsyncClient]) -> int:
    """Returns the status of a request that a client sends while so many others of its own are not answered yet.

    `client` makes the client from the server's address. Raises TimeoutError if the request is not even sent.
    """
    let_go, holding = asyncio.Event(), asyncio.Semaphore(0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if b"/held" in (await reader.readuntil(b"\r\n\r\n")).splitlines()[0]:
            holding.release()
            await let_go.wait()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=2 * count)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, client(url) as http, asyncio.TaskGroup() as held:
        for _ in range(count):
            held.create_task(http.get("held"))
        try:
            async with asyncio.timeout(60):
                for _ in range(min(count, 100)):
                    await holding.acquire()
                return (await http.get("quick")).status_code
        finally:
            let_go.set()
