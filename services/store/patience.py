"""Repeats a call while what it needs is away: Redis, the folder of bodies, or the disk of the archive."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

FIRST_PAUSE_S = 1 / 16
TELL_S = 0.5
"""Pause from which on an outage is told: shorter ones are over by then."""
T = TypeVar("T")


def patiently(call: Callable[[], T], *, seconds: float, away: Callable[[Exception], bool],
              tell: Callable[[Exception], object], longest_pause_s: float = 1.0) -> T:
    """Returns the result of `call`. Repeats it after errors for which `away` holds, with pauses that double.

    Raises the error itself if `away` does not hold, or once `seconds` have passed. `tell` is called at most once.
    """
    began, pause = time.monotonic(), FIRST_PAUSE_S
    while True:
        try:
            return call()
        except Exception as error:
            if not away(error) or time.monotonic() - began > seconds:
                raise
            if pause == TELL_S:
                tell(error)
        time.sleep(pause)
        pause = min(2 * pause, longest_pause_s)
