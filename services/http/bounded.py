"""Answers of other servers, read within bounds.

Another program may stand at the address of a server, or somebody may have broken into it: it may answer without end, or
with little that inflates to gigabytes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager

import httpx

from services.files import JSON_BYTES

PLAIN = {"accept-encoding": "identity"}
"""The header of requests whose answers are read here."""


class Unbounded(httpx.HTTPError):
    """The answer is larger than it may be, or could become so when it is inflated."""


class _Body:
    """The body of an answer while it comes in."""

    def __init__(self, reply: httpx.Response, most: int) -> None:
        if reply.headers.get("content-encoding", "identity") != "identity":
            raise Unbounded("its answer is compressed, and the client takes none that is")
        self._reply, self._most, self._read = reply, most, bytearray()

    def add(self, part: bytes) -> None:
        self._read += part
        if len(self._read) > self._most:
            raise Unbounded(f"its answer has more than {self._most >> 20} MiB")

    def whole(self) -> httpx.Response:
        reply = self._reply
        return httpx.Response(reply.status_code, headers=reply.headers, content=bytes(self._read),
                              request=reply.request)


async def whole(stream: AbstractAsyncContextManager[httpx.Response], most: int) -> httpx.Response:
    """Returns the whole answer of `http.stream(...)`, whose body has at most `most` bytes. Raises httpx.HTTPError."""
    async with stream as reply:
        body = _Body(reply, most)
        async for part in reply.aiter_bytes():
            body.add(part)
        return body.whole()


def get(url: str, *, seconds: float, headers: Mapping[str, str] | None = None,
        most: int = JSON_BYTES) -> httpx.Response:
    """Returns the answer to a GET, whose body has at most `most` bytes and comes within `seconds`.

    Ignores proxies in environment variables, which do not know a run's addresses. Raises httpx.HTTPError.
    """
    deadline = time.monotonic() + seconds
    with httpx.stream("GET", url, headers={**PLAIN, **(headers or {})}, timeout=seconds, trust_env=False) as reply:
        body = _Body(reply, most)
        for part in reply.iter_bytes():
            body.add(part)
            if time.monotonic() > deadline:
                raise httpx.ReadTimeout(f"no whole answer within {seconds:g} s")
        return body.whole()
