"""How a coroutine hears SIGTERM: it is cancelled, as asyncio cancels it for Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def until_sigterm(work: Awaitable[T]) -> T:
    """Returns the result of `work`, or cancels it on SIGTERM and raises SystemExit of 143 once it has ended.

    The handler of signals_unwind would raise in whatever task runs: a task group makes a group of the exception, and
    asyncio prints its traceback. That handler is back afterwards.
    """
    loop, task, heard = asyncio.get_running_loop(), asyncio.current_task(), asyncio.Event()
    assert task is not None
    before = signal.getsignal(signal.SIGTERM)
    loop.add_signal_handler(signal.SIGTERM, lambda: (heard.set(), task.cancel()))
    try:
        return await work
    except asyncio.CancelledError:
        if heard.is_set():
            raise SystemExit(128 + signal.SIGTERM) from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, before)
