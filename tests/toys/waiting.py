"""Waits for conditions of other processes."""

import time
from collections.abc import Callable


def wait_until(holds: Callable[[], bool], *, seconds: float = 120.0) -> None:
    """Returns once `holds` does. Raises AssertionError if that takes longer than `seconds`."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
