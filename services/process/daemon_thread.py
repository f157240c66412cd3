"""Threads for calls that may hang. None keeps its process alive."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
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
    """Begins `work` in a thread of its own. Returns its result, or what it raises."""
    thread = DaemonThread(name)
    future = thread.submit(work)
    thread.shutdown()
    return future
