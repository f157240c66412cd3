"""Threads: for calls that may hang, and to watch the rest of the process while a block runs. None keeps its process
alive. Light.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class DaemonThread(Executor):
    """Runs calls one after another in a thread of its own. Nobody waits for a call that hangs.

    ThreadPoolExecutor waits for its thread at the end of its block, and again at the end of the process.
    """

    def __init__(self, name: str) -> None:
        self._calls = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Queues a call and returns its future."""
        future = Future[Any]()
        self._calls.put((future, partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002 - Executor's
        """Ends the thread after the calls that are queued. Returns at once, whatever `wait` says."""
        self._calls.put(None)

    def _run(self) -> None:
        while (queued := self._calls.get()) is not None:
            future, call = queued
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = call()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)


def started(work: Callable[[], T], name: str) -> Future[T]:
    """Begins `work` in a thread of its own. Returns its result, or what it raises, as a future."""
    thread = DaemonThread(name)
    future = thread.submit(work)
    thread.shutdown()
    return future


@contextmanager
def watched(watch: Callable[[threading.Event], None], *, name: str) -> Iterator[None]:
    """Runs `watch` in a thread of its own. When the block ends, it sets the event that `watch` takes, and waits until
    `watch` has returned."""
    ended = threading.Event()
    thread = threading.Thread(target=watch, args=(ended,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def in_loop() -> bool:
    """Returns whether an event loop runs in this thread, so that no other one can run here. A notebook calls all code
    inside one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
