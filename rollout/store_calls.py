"""A worker's calls of the store, which is synchronous: in threads, and under a deadline.

A commit may take minutes: its body is large, and `redis.bodies` may be unavailable. So the ends of episodes have
threads of their own. If they took all threads, no claim would be renewed, and other workers would play these episodes
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from services.errors import StoreFault

LOOPS = 4
"""Number of a worker's loops that call the store: drive, turns, renew and beat. Each has one call at a time."""
EPISODES = 16
"""Number of episodes that can call the store at the same time, at their beginning or end."""
T = TypeVar("T")


class StoreCalls:
    """Calls the store. Each call has `longest_s` seconds; then it raises StoreFault."""

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._loops = ThreadPoolExecutor(LOOPS, thread_name_prefix="store")
        self._episodes = ThreadPoolExecutor(EPISODES, thread_name_prefix="episodes")

    async def for_loop(self, call: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Makes a call of the store for one of the worker's loops."""
        return await self._within(self._loops, partial(call, *arguments, **named), call.__name__)

    async def for_episode(self, call: Callable[..., T], *arguments: Any) -> T:
        """Makes a call of the store for one episode: to read its earlier turns, to end it, or to store a correction."""
        return await self._within(self._episodes, partial(call, *arguments), call.__name__)

    async def _within(self, threads: Executor, call: Callable[[], T], name: str) -> T:
        try:
            async with asyncio.timeout(self._longest_s):
                return await asyncio.get_running_loop().run_in_executor(threads, copy_context().run, call)
        except TimeoutError as error:
            raise StoreFault(f"{name} gave no answer in {self._longest_s:.0f} s") from error
