"""CPU seconds that this process spends on being watched: metrics, logs, archive. `gagpo bench overhead` adds them up.

Of the calling thread alone, so a thread that waits costs nothing; a part within another counts for the outer one.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Literal, ParamSpec, TypeVar

Part = Literal["metrics", "logs", "archive"]
P = ParamSpec("P")
T = TypeVar("T")

_lock = threading.Lock()
_within = threading.local()
_spent: dict[str, float] = {"metrics": 0.0, "logs": 0.0, "archive": 0.0}


def counted(part: Part) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A decorator: the function's CPU time counts for `part`. Not for coroutines, which share their thread."""

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
    """Part -> CPU seconds so far; `cpu`: those of the whole process."""
    with _lock:
        return {**_spent, "cpu": time.process_time()}
