"""Bridges an outage of Redis, a server, the folder of bodies, or the disk of a run's folder.

A call is repeated until it succeeds (`retry`). Where a loop must not wait, the last value that was read from a file is
used until the file can be read again (LastValue).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

from services.errors import DeadlineExceeded, Unanswered, Unavailable

FIRST_PAUSE_S = 1 / 16
REPORT_PAUSE_S = 0.5
"""An outage is reported once the pause reaches this. Shorter outages are over by then."""
LONGEST_DISK_PAUSE_S = 10.0
"""A full disk or an unreachable shared folder takes longer to come back than a server."""
SERVER_PAUSE_S = 0.5
"""Pause between two requests to a server that does not answer."""
T = TypeVar("T")


def retry(call: Callable[[], T], *, seconds: float, temporary: Callable[[Exception], bool],
          report: Callable[[Exception], object], first_pause_s: float = FIRST_PAUSE_S,
          longest_pause_s: float = 1.0) -> T:
    """Returns the result of `call`. Repeats it after errors that are `temporary`, with pauses that double.

    Raises the error itself if it is not temporary, or once `seconds` have passed. `report` is called at most once.
    """
    began, pause, reported = time.monotonic(), first_pause_s, False
    while True:
        try:
            return call()
        except Exception as error:
            if not temporary(error) or time.monotonic() - began >= seconds:
                raise
            if pause >= REPORT_PAUSE_S and not reported:
                report(error)
                reported = True
        time.sleep(pause)
        pause = min(2 * pause, longest_pause_s)


def retry_files(call: Callable[[], T], *, seconds: float, what: str,
                note: Callable[[str], object] = lambda _: None) -> T:
    """Returns the result of `call`, which reads or writes files. Repeats it while it raises OSError.

    A disk may be full, and a shared folder unreachable for a while (EIO, ESTALE). `what`: the subject of the message,
    such as `RUN/checkpoints could not be read`. `note` takes the message too, for callers without a log. Raises
    DeadlineExceeded once `seconds`, the value of learner.collective_s, have passed.
    """
    def report(error: Exception) -> None:
        from services.telemetry.logs import get_logger  # the learner's self-test, which saves, has no structlog

        get_logger("run").warning(f"{what}; waiting for the folder", reason=str(error), at_most_s=seconds)
        note(f"{what} ({error}); waiting for the folder")

    try:
        return retry(call, seconds=seconds, temporary=lambda error: isinstance(error, OSError), report=report,
                     longest_pause_s=LONGEST_DISK_PAUSE_S)
    except OSError as error:
        raise DeadlineExceeded(f"{what} for {seconds:g} s ({error}; learner.collective_s)") from error


def retry_server(call: Callable[[], T], seconds: float, report: Callable[[str], object]) -> T:
    """Returns the result of `call`. Repeats it while it raises Unanswered or Unavailable.

    Raises that after `seconds`, other errors at once. `report` takes a line at the first failure.
    """
    def warn(error: Exception) -> None:
        what = error.what if isinstance(error, Unanswered) else error
        report(f"{what}; waiting for it for up to {seconds:g} s")

    return retry(call, seconds=seconds, temporary=lambda error: isinstance(error, (Unanswered, Unavailable)),
                 report=warn, first_pause_s=SERVER_PAUSE_S, longest_pause_s=SERVER_PAUSE_S)


class LastValue(Generic[T]):
    """Reads a value from a file, and returns the last one while a read raises OSError (EIO, ESTALE).

    `seconds`: the value of learner.collective_s, or 0 to raise errors as they come.
    """

    def __init__(self, read: Callable[[], T], *, seconds: float) -> None:
        self._read, self._seconds = read, seconds
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
            self._tolerate(error)
        else:
            self._failing_since = None
        return self._values[0]

    def keep(self, value: T) -> None:
        """Makes `value` the last one, because the caller has just written it."""
        self._values = [value]

    def _tolerate(self, error: OSError) -> None:
        now = time.monotonic()
        if self._failing_since is None:
            from services.telemetry.logs import get_logger

            self._failing_since = now
            get_logger("run").warning("a file cannot be read; using its last content", reason=str(error),
                                      at_most_s=self._seconds)
        elif (lasted := now - self._failing_since) > self._seconds:
            raise DeadlineExceeded(f"a file could not be read for {lasted:.0f} s ({error}; learner.collective_s)"
                                   ) from error
