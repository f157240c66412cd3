"""How OpenMP threads wait for each other. Light: must run before torch is imported, since libgomp reads this once."""

from __future__ import annotations

import os

SPINS = "2000"
"""Tens of microseconds: longer than the gap between two small operators, far shorter than a scheduler's time slice."""


def wait_politely() -> None:
    """Threads at a barrier spin briefly and then sleep, unless the environment says how they wait.

    A thread that spins on keeps its core from the thread that it waits for. With two threads on two cores and anything
    else running, training a small model then falls to a small part of its speed; sleeping at once costs half of it on
    an idle machine.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
