"""How OpenMP threads wait for each other. Must run before torch is imported, because libgomp reads it once. Light."""

from __future__ import annotations

import os

SPINS = "2000"
"""Tens of microseconds: longer than the gap between two small operators, far shorter than a time slice."""


def wait_politely() -> None:
    """Makes threads at a barrier spin briefly and then sleep, unless the environment sets how they wait.

    A thread that spins longer takes the core from the thread that it waits for. With two threads on two busy cores,
    training a small model then becomes many times slower. Sleeping at once halves the speed on an idle machine.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
