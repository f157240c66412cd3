"""Answers of other servers, read within bounds.

Another program may stand at the address of a server, or somebody may have broken into it: it may answer without end, or
with little that inflates to gigabytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager

import httpx

from services.files import JSON_BYTES

PLAIN = {"accept-encoding": "identity"}
"""The header of requests whose answers are read here."""


class Unbounded(httpx.HTTPError):
    """The answer is larger than it may be, or could become so when it is inflated."""


async def whole(stream: AbstractAsyncContextManager[httpx.Response], most: int) -> httpx.Response:
    """Returns the whole answer of `http.stream(...)`, whose body has at most `most` bytes. Raises httpx.HTTPError."""
    async with stream as reply:
        if reply.headers.get("content-encoding", "identity") != "identity":
            raise Unbounded("its answer is compressed, and the client takes none that is")
        body = bytearray()
        async for part in reply.aiter_bytes():
            body += part
            if len(body) > most:
                raise Unbounded(f"its answer has more than {most >> 20} MiB")
        return httpx.Response(reply.status_code, headers=reply.headers, content=bytes(body), request=reply.request)


def get(url: str, *, seconds: float, headers: Mapping[str, str] | None = None,
        most: int = JSON_BYTES) -> httpx.Response:
    """Returns the answer to a GET, whose body has at most `most` bytes and which comes whole within `seconds`.

    Call it outside of event loops. Ignores proxies in environment variables, which do not know a run's addresses.
    Raises httpx.HTTPError.
    """
    async def asked() -> httpx.Response:
        client = httpx.AsyncClient(timeout=None, trust_env=False)  # noqa: S113 - one deadline bounds all of it
        async with asyncio.timeout(seconds), client as http:
            return await whole(http.stream("GET", url, headers={**PLAIN, **(headers or {})}), most)

    try:
        return asyncio.run(asked())
    except TimeoutError:
        raise httpx.ReadTimeout(f"no whole answer within {seconds:g} s") from None
