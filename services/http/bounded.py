"""Reads the answers of other servers within limits of size and time.

Another program may listen at the address of a server, or somebody may have broken into it. It may answer without end,
or with a few bytes that inflate to gigabytes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager

import httpx

from services.files import JSON_BYTES
from services.process.threads import DaemonThread, in_loop

PLAIN = {"accept-encoding": "identity"}
"""The header of requests whose answers are read here."""
UNLIMITED = httpx.Limits(max_connections=None)
"""For clients whose requests in flight are bounded elsewhere. With httpx's 100 connections, a wait for a free one would
count as a server's silence."""


class Unbounded(httpx.HTTPError):
    """The answer is larger than it may be, or could become so when it is inflated."""


class TooLarge(Unbounded):
    """The answer is larger than it may be."""


class _Answer:
    """Collects the body of an answer while it is read. Raises Unbounded if it is compressed, TooLarge beyond `most`."""

    def __init__(self, reply: httpx.Response, most: int) -> None:
        if reply.headers.get("content-encoding", "identity") != "identity":
            raise Unbounded("its answer is compressed, and the client takes none that is")
        self._reply, self._most, self._body = reply, most, bytearray()

    def add(self, part: bytes) -> None:
        self._body += part
        if len(self._body) > self._most:
            raise TooLarge(f"its answer has more than {self._most >> 20} MiB")

    def response(self) -> httpx.Response:
        return httpx.Response(self._reply.status_code, headers=self._reply.headers, content=bytes(self._body),
                              request=self._reply.request)


async def read_response(stream: AbstractAsyncContextManager[httpx.Response], most: int) -> httpx.Response:
    """Returns the answer of `http.stream(...)`, complete and of at most `most` bytes. Raises httpx.HTTPError."""
    async with stream as reply:
        answer = _Answer(reply, most)
        async for part in reply.aiter_bytes():
            answer.add(part)
        return answer.response()


def read_response_within(stream: AbstractContextManager[httpx.Response], most: int, seconds: float) -> httpx.Response:
    """Does the same for a client without an event loop. Raises ReadTimeout at the first part that comes later than
    `seconds`: without this, a server that sends a byte now and then would never end."""
    until = time.monotonic() + seconds
    with stream as reply:
        answer = _Answer(reply, most)
        for part in reply.iter_bytes():
            answer.add(part)
            if time.monotonic() > until:
                raise httpx.ReadTimeout(f"no complete answer within {seconds:g} s")
        return answer.response()


def get(url: str, *, seconds: float, headers: Mapping[str, str] | None = None,
        most: int = JSON_BYTES) -> httpx.Response:
    """Returns the answer to a GET, whose body has at most `most` bytes and which is complete within `seconds`.

    Blocks, also if called in an event loop such as a notebook's. Ignores the proxies in environment variables, which do
    not know a run's addresses. Raises httpx.HTTPError.
    """
    async def asked() -> httpx.Response:
        client = httpx.AsyncClient(timeout=None, trust_env=False)  # noqa: S113 - one deadline bounds all of it
        async with asyncio.timeout(seconds), client as http:
            return await read_response(http.stream("GET", url, headers={**PLAIN, **(headers or {})}), most)

    try:
        if not in_loop():
            return asyncio.run(asked())
        with DaemonThread("request") as apart:
            return apart.submit(asyncio.run, asked()).result()
    except TimeoutError:
        raise httpx.ReadTimeout(f"no complete answer within {seconds:g} s") from None
