"""The first answer to a request that may have to be sent more than once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import httpx

from services.amounts import rounded

AGAIN_S = 5.0
"""Seconds without an answer after which a request is sent once more. The pauses before further copies double."""


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
        raise httpx.ReadTimeout(f"no answer within {rounded(within_s)} s") from None
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
