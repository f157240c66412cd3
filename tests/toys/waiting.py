"""Waits for conditions of other processes."""

import time
from collections.abc import Callable

import redis


def wait_until(holds: Callable[[], bool], *, seconds: float = 120.0) -> None:
    """Returns once `holds` does. Raises AssertionError if that takes longer than `seconds`."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def wait_until_written(client: redis.Redis) -> None:
    """Waits until the append-only file of Redis holds what it has acknowledged, so that a kill loses nothing of it.

    While an earlier fsync takes long, Redis holds acknowledged writes in memory for up to two seconds (everysec).
    """
    wait_until(lambda: not client.info("persistence")["aof_buffer_length"])
