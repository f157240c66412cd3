"""Processes that share the runs of an experiment, and end with it."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager


@contextmanager
def worker_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """A pool whose processes end at once if the block raises, as it does on a signal. What they work on is lost.

    The executor alone would wait until all that was submitted is done.
    """
    with ProcessPoolExecutor(workers, initializer=_leave_signals_to_parent) as pool:
        try:
            yield pool
        except BaseException:
            for worker in multiprocessing.active_children():
                worker.terminate()
            raise


def _leave_signals_to_parent() -> None:
    """Ctrl-C reaches all processes of a terminal, and here the parent hears it. Its SIGTERM ends a worker, whose
    inherited handler would make an exception that the executor keeps as a result."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
