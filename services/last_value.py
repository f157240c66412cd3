"""A value that is read from a file again and again. The last one holds while the file's folder is away."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

from services.errors import DeadlineExceeded
from services.telemetry.logs import get_logger

T = TypeVar("T")
log = get_logger("run")


class LastValue(Generic[T]):
    """Reads a value, and returns the last one while a read raises OSError (EIO, ESTALE: a shared folder is away).

    Where a wait does no harm, services/patience.py repeats the call instead. `key`: the config's key that holds
    `seconds`. With 0 seconds errors are raised as they come.
    """

    def __init__(self, read: Callable[[], T], *, seconds: float, key: str = "learner.collective_s") -> None:
        self._read, self._seconds, self._key = read, seconds, key
        self._values: list[T] = []
        self._failing_since: float | None = None

    def now(self) -> T:
        """Returns the present value, or the last one. Logs only the first of several failures.

        Raises the error itself if no value is known, and DeadlineExceeded if reads have failed for `seconds`.
        """
        try:
            self._values = [self._read()]
        except OSError as error:
            if not self._values or not self._seconds:
                raise
            self._bear(error)
        else:
            self._failing_since = None
        return self._values[0]

    def keep(self, value: T) -> None:
        """Makes `value` the last one, because the caller has just written it."""
        self._values = [value]

    def _bear(self, error: OSError) -> None:
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
            log.warning("a file cannot be read; what it said last still holds", reason=str(error),
                        at_most_s=self._seconds)
        elif (lasted := now - self._failing_since) > self._seconds:
            raise DeadlineExceeded(f"a file could not be read for {lasted:.0f} s ({error}; {self._key})") from error
