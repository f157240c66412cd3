"""Variables of this process's environment: for a block, and for OpenMP. Light."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

SPINS = "2000"
"""Tens of microseconds: longer than the gap between two small operators, far shorter than a time slice."""


@contextmanager
def env_variable(name: str, value: str) -> Iterator[None]:
    """Sets a variable until the block ends, for all threads. Then it is as it was before."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def limit_openmp_spin() -> None:
    """Makes OpenMP's threads at a barrier spin briefly and then sleep, unless the environment sets how they wait.

    A thread that spins longer takes the core from the thread that it waits for. With two threads on two busy cores,
    training a small model then becomes many times slower. Sleeping at once halves the speed on an idle machine.
    Call it before torch is imported, because libgomp reads the variable once.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
