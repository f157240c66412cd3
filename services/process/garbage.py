"""A collection of garbage that has taken place when the call returns. Light."""

from __future__ import annotations

import gc
import threading
import time

OTHERS_S = 10.0
"""Longest wait in seconds for a collection of another thread, whose finalizers may wait for anything."""
PAUSE_S = 0.01
OLDEST = 2


def collect_garbage() -> None:
    """Frees all objects that only refer to each other.

    `gc.collect` returns at once, and frees nothing, while another thread collects.
    """
    caller, deadline = threading.get_ident(), time.monotonic() + OTHERS_S
    collected = False

    def note(phase: str, info: dict[str, int]) -> None:
        nonlocal collected
        collected |= phase == "stop" and info["generation"] == OLDEST and threading.get_ident() == caller

    gc.callbacks.append(note)
    try:
        gc.collect()
        while not collected and time.monotonic() < deadline:
            time.sleep(PAUSE_S)
            gc.collect()
    finally:
        gc.callbacks.remove(note)
