"""Waits for servers that are away for now."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from services.errors import Unanswered, Unavailable

PAUSE_S = 0.5
"""Pause between two tries."""
T = TypeVar("T")


def until_answered(call: Callable[[], T], seconds: float, tell: Callable[[str], object]) -> T:
    """Returns what `call` returns, and makes it again while it raises Unanswered or Unavailable.

    Raises that after `seconds`, other errors at once. `tell` takes a line if it waits.
    """
    deadline, told = time.monotonic() + seconds, False
    while True:
        try:
            return call()
        except (Unanswered, Unavailable) as error:
            if time.monotonic() >= deadline:
                raise
            if not told:
                what = error.what if isinstance(error, Unanswered) else error
                tell(f"{what}; waiting for it for up to {seconds:g} s")
            told = True
            time.sleep(PAUSE_S)
