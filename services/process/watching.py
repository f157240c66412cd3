"""A thread that looks at the rest of its process while a block runs. Light."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def watched(watch: Callable[[threading.Event], None], *, name: str) -> Iterator[None]:
    """Runs `watch` in a thread of its own. The event that it takes is set when the block ends, and it must return."""
    ended = threading.Event()
    thread = threading.Thread(target=watch, args=(ended,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
