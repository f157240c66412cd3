"""Ends the process if one call of the environment or the event loop hangs, so that a supervisor starts it again.

A server that hangs is not dead: it keeps its port, and clients keep asking it. A call that takes `env.call_seconds`
has lost its client, because no client waits longer. Rebuilding a session takes many calls, and each has this time.

Loading does not count: the watch begins when the environment is made and the server listens. Not covered: a call into C
that never releases the interpreter's lock stops this thread too. /healthz does not answer then either.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from services.process.threads import watched

LOOKS = 20
"""Number of looks within the longest time. Looks are counted, not seconds: a stopped process (SIGSTOP) makes none."""
STATUS = 1


class Activity:
    """Shows other threads whether a thread is in the store of sessions, and whether it makes progress. At most one
    thread is in the store."""

    def __init__(self) -> None:
        self.thread: int | None = None
        """Id of the thread that is in the store. None: no thread is."""
        self.moves = 0
        """Grows at every entry, and between the calls of the environment that one entry makes."""

    def __enter__(self) -> None:
        self.thread = threading.get_ident()
        self.moves += 1

    def __exit__(self, *_: object) -> None:
        self.thread = None


class Watchdog:
    """Looks at the store's activity and at the event loop. LOOKS looks without progress are a reason to end."""

    def __init__(self, activity: Activity, loop: asyncio.AbstractEventLoop, longest_s: float) -> None:
        """`loop` runs in the thread that makes the watchdog."""
        self._activity = activity
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._longest_s = longest_s
        self._heard = True
        self._moves = -1
        self._looks = 0

    def look(self) -> str:
        """Looks once. Returns the error line if the process should end, else ""."""
        thread, moves = self._activity.thread, self._activity.moves
        stuck = moves == self._moves and (thread is not None or not self._heard)
        self._looks = self._looks + 1 if stuck else 0
        self._moves = moves
        if self._heard:
            self._heard = False
            self._loop.call_soon_threadsafe(self._hear)
        return self._line(thread) if self._looks >= LOOKS else ""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Looks in a thread of its own until the block ends, and ends the process with a line on stderr."""
        def watch(ended: threading.Event) -> None:
            while not ended.wait(self._longest_s / LOOKS):
                if line := self.look():
                    os.write(2, f"{line}\n".encode())
                    os._exit(STATUS)  # no handler and no other thread may delay the end

        with watched(watch, name="watchdog"):
            yield

    def _hear(self) -> None:
        self._heard = True

    def _line(self, thread: int | None) -> str:
        hangs = "the server's event loop has not run for" if thread is None else \
            "one call of the environment has not ended within"
        frame = sys._current_frames().get(thread or self._loop_thread)  # pyright: ignore[reportPrivateUsage]
        place = traceback.extract_stack(frame, limit=1)[0] if frame is not None else None
        where = f", in {place.name} ({place.filename}:{place.lineno})" if place is not None else ""
        return (f"error: {hangs} {self._longest_s:g} s{where}, so the server ends, to be started again; raise "
                "env.call_seconds if calls take that long")
