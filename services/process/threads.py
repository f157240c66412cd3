"""Threads: work beside the caller, and how OpenMP threads wait for each other. Light.

`wait_politely` must run before torch is imported, because libgomp reads the variable once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

SPINS = "2000"
"""Tens of microseconds: longer than the gap between two small operators, far shorter than a time slice."""


def wait_politely() -> None:
    """Makes threads at a barrier spin briefly and then sleep, unless the environment sets how they wait.

    A thread that spins longer takes the core from the thread that it waits for. With two threads on two busy cores,
    training a small model then becomes many times slower. Sleeping at once halves the speed on an idle machine.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)


def started(work: Callable[[], T], name: str) -> Future[T]:
    """Begins `work` in a thread that does not keep its process alive. Returns its result, or what it raises."""
    made: Future[T] = Future()

    def resolve() -> None:
        try:
            result = work()
        except BaseException as error:
            made.set_exception(error)
        else:
            made.set_result(result)

    threading.Thread(target=resolve, name=name, daemon=True).start()
    return made
