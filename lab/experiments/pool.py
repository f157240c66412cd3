"""Processes that share the runs of an experiment, and end with it."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

from services.process.child_processes import end_with_parent


@contextmanager
def worker_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Provides a pool whose processes end at once if the block raises, as it does on a signal.

    Their work is lost. The executor alone would wait until all that was submitted is done. They are killed: Python
    forgets a SIGTERM that comes while a process begins after its fork, and this one would wait for it for ever.
    """
    with ProcessPoolExecutor(workers, initializer=_end_with_parent) as pool:
        try:
            yield pool
        except BaseException:
            for worker in multiprocessing.active_children():
                worker.kill()
            _shut_down(pool)
            raise


def _shut_down(pool: ProcessPoolExecutor) -> None:
    """Waits for the executor's thread, unless a signal kept it from beginning. Python wakes the thread when it ends,
    and fails with "Bad file descriptor" if the thread closes its pipe just then.
    """
    try:
        pool.shutdown()
    except RuntimeError:
        pool.shutdown(wait=False)


def _end_with_parent() -> None:
    """Lets the parent alone hear Ctrl-C, which reaches all processes of a terminal, and lets SIGTERM end a worker. The
    handler that it inherits would raise, and the executor keeps an exception as a result.

    The kernel sends SIGTERM if the parent is killed: a worker would wait for work for ever.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent(signal.SIGTERM)
