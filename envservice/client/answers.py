"""The first answer to a request that may have to be sent more than once, read within a bound.

Whoever has broken into an environment's container may answer without end, or with little that inflates to gigabytes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx

AGAIN_S = 5.0
"""Seconds without an answer after which a request is sent once more. The pauses before further copies double."""


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


async def first_answer(
    send: Callable[[], Coroutine[Any, Any, httpx.Response]], *, once: bool, within_s: float,
) -> httpx.Response:
    """Sends a request, and unless `once` copies of it while no answer comes. Returns the first answer.

    All copies together have `within_s`: each has its own deadline too, but later ones would end ever later.

    A connection may be dead without a sign, and the server may also be slow. It carries out a reset or a step once,
    however often it is asked. A server that is about to end refuses a copy and answers the request all the same, so an
    error counts when nothing else is under way. Raises httpx.HTTPError.
    """
    copies: set[asyncio.Task[httpx.Response]] = set()
    pause = None if once else AGAIN_S
    try:
        async with asyncio.timeout(within_s):
            while True:
                copies.add(asyncio.create_task(send()))
                answer = await _answer_within(copies, pause)
                if answer is not None:
                    return answer
                pause = 2 * pause if pause else None
    except TimeoutError:
        raise httpx.ReadTimeout(f"no answer within {within_s:.3g} s") from None
    finally:
        for copy in copies:
            copy.cancel()


async def _answer_within(copies: set[asyncio.Task[httpx.Response]], seconds: float | None) -> httpx.Response | None:
    """Returns the first answer of `copies`, or None after `seconds`. Raises the error of the last one if all fail."""
    until = None if seconds is None else time.monotonic() + seconds
    while True:
        left = None if until is None else max(0.0, until - time.monotonic())
        done, _ = await asyncio.wait(copies, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            return None
        copies -= done
        answered = [copy for copy in done if copy.exception() is None]
        if answered or not copies:
            return (answered or [*done])[0].result()
