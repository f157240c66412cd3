"""Logs which line of an agent blocks the event loop, so that nobody has to guess why a worker is silent.

The loop also answers the agents' own calls. A blocking client in an async function therefore waits for an answer that
cannot come, and the worker is killed for its silence after `supervision.silence_seconds`, again and again.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from services.process.threads import watched

BLOCKED_S = 10.0
"""Seconds after which a blocked loop is logged. Claims are lost after 30."""
PAUSE_S, LOOK_S = 1.0, 0.1


@contextmanager
def telling_if_blocked(tell: Callable[[str], object], *, blocked_s: float = BLOCKED_S) -> Iterator[None]:
    """Watches this thread's event loop from another one until the block ends. `tell` takes one line each time
    that the loop has been blocked for `blocked_s` seconds."""
    loop, thread = asyncio.get_running_loop(), threading.get_ident()
    depth: int | None = None

    def measure() -> None:
        nonlocal depth
        depth = len(traceback.extract_stack()) - 1

    def watch(ended: threading.Event) -> None:
        while not ended.wait(PAUSE_S):
            heard, since, logged = threading.Event(), time.monotonic(), False
            loop.call_soon_threadsafe(heard.set)
            while not heard.wait(LOOK_S) and not ended.is_set():
                if not logged and time.monotonic() - since > blocked_s:
                    logged = True
                    newest = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage]
                    tell(_line(newest, depth, blocked_s))

    loop.call_soon(measure)
    with watched(watch, name="blocked loop"):
        yield


def _line(frame: FrameType | None, depth: int | None, blocked_s: float) -> str:
    """Returns the line to tell. `frame` is the newest of the loop's thread, and its place the outermost of the agent's
    own code. `depth` is the number of frames below what the loop runs: uvloop has no frame of its own by which to know
    where that begins. None: the loop has not run yet."""
    frames = [] if frame is None or depth is None else traceback.extract_stack(frame)[depth:]
    own = [one for one in frames if not one.filename.endswith("rollout/agents/runner.py")]
    where = f", in {own[0].name} ({own[0].filename}:{own[0].lineno})" if own else ""
    return (f"the event loop has not run for {blocked_s:g} s{where}: it answers the agents' calls, too, so a client "
            "that blocks waits for ever; await an async client, or call it by asyncio.to_thread")
