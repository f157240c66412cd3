"""Repeats a call while what it needs is away: Redis, a server, the folder of bodies, or the disk of a run's folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from services.errors import DeadlineExceeded, Unanswered, Unavailable

FIRST_PAUSE_S = 1 / 16
TELL_S = 0.5
"""Pause from which on an outage is told: shorter ones are over by then."""
LONGEST_DISK_PAUSE_S = 10.0
"""A full disk or a shared folder that is away takes longer to come back than a server."""
SERVER_PAUSE_S = 0.5
"""Pause before a server that is away is asked again."""
T = TypeVar("T")


def patiently(call: Callable[[], T], *, seconds: float, away: Callable[[Exception], bool],
              tell: Callable[[Exception], object], first_pause_s: float = FIRST_PAUSE_S,
              longest_pause_s: float = 1.0) -> T:
    """Returns the result of `call`. Repeats it after errors for which `away` holds, with pauses that double.

    Raises the error itself if `away` does not hold, or once `seconds` have passed. `tell` is called at most once.
    """
    began, pause, logged = time.monotonic(), first_pause_s, False
    while True:
        try:
            return call()
        except Exception as error:
            if not away(error) or time.monotonic() - began >= seconds:
                raise
            if pause >= TELL_S and not logged:
                tell(error)
                logged = True
        time.sleep(pause)
        pause = min(2 * pause, longest_pause_s)


def while_folder_away(call: Callable[[], T], *, seconds: float, what: str,
                      note: Callable[[str], object] = lambda _: None) -> T:
    """Returns the result of `call`, which reads or writes files. Repeats it while it raises OSError.

    A disk may be full, and a shared folder away for a while (EIO, ESTALE). `what`: the subject of the message, such as
    `RUN/checkpoints could not be read`. `note` takes the message too, for callers without a log. Raises
    DeadlineExceeded once `seconds`, the value of learner.collective_s, have passed.
    """
    def tell(error: Exception) -> None:
        from services.telemetry.logs import get_logger  # the learner's self-test, which saves, has no structlog

        get_logger("run").warning(f"{what}; waiting for the folder", reason=str(error), at_most_s=seconds)
        note(f"{what} ({error}); waiting for the folder")

    try:
        return patiently(call, seconds=seconds, away=lambda error: isinstance(error, OSError), tell=tell,
                         longest_pause_s=LONGEST_DISK_PAUSE_S)
    except OSError as error:
        raise DeadlineExceeded(f"{what} for {seconds:g} s ({error}; learner.collective_s)") from error


def until_answered(call: Callable[[], T], seconds: float, tell: Callable[[str], object]) -> T:
    """Returns the result of `call`. Repeats it while it raises Unanswered or Unavailable.

    Raises that after `seconds`, other errors at once. `tell` takes a line at the first failure.
    """
    def say(error: Exception) -> None:
        what = error.what if isinstance(error, Unanswered) else error
        tell(f"{what}; waiting for it for up to {seconds:g} s")

    return patiently(call, seconds=seconds, away=lambda error: isinstance(error, (Unanswered, Unavailable)), tell=say,
                     first_pause_s=SERVER_PAUSE_S, longest_pause_s=SERVER_PAUSE_S)
