"""How OpenMP threads wait for each other. Light: must run before torch is imported, since libgomp reads this once."""

from __future__ import annotations

import os


def wait_politely() -> None:
    """Threads at a barrier sleep instead of spinning, unless OMP_WAIT_POLICY is set already.

    A spinning thread keeps its core from the thread that it waits for. With two threads on two cores and anything
    else running, training a small model then falls to a thirtieth; asleep, it shares (docs/reproduction.md).
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
