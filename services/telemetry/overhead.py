"""CPU seconds that this process spends on metrics, logs, the archive and kept turns, for `lab.bench.overhead`.

Only the calling thread counts, so a thread that waits costs nothing. A part within another counts for the outer one.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Literal, ParamSpec, TypeVar, get_args

Part = Literal["metrics", "logs", "archive", "turns"]
P = ParamSpec("P")
T = TypeVar("T")

_lock = threading.Lock()
_within = threading.local()
_spent: dict[str, float] = dict.fromkeys(get_args(Part), 0.0)


def counted(part: Part) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Returns a decorator that counts a function's CPU time for `part`. Not for coroutines: they share a thread."""

    def decorate(work: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(work)
        def measured(*args: P.args, **kwargs: P.kwargs) -> T:
            if getattr(_within, "part", None):
                return work(*args, **kwargs)
            _within.part, start = part, time.thread_time()
            try:
                return work(*args, **kwargs)
            finally:
                seconds, _within.part = time.thread_time() - start, None
                with _lock:
                    _spent[part] += seconds

        return measured

    return decorate


def spent() -> dict[str, float]:
    """Returns the CPU seconds so far of each part, and of the entire process under `cpu`."""
    with _lock:
        return {**_spent, "cpu": time.process_time()}
