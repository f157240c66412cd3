"""How a command hears SIGTERM and SIGHUP: they unwind the stack as Ctrl-C does. Light."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

AGAIN_S = 0.05
"""Seconds after which a lost signal is sent again."""
_POLITE = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def signals_unwind() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP raise SystemExit of 128 + number, so that every `finally` block stops what it started.

    The handlers stay after the block. Inside it no signal is lost: if one comes while a `__del__` or a callback of a
    garbage collection runs, Python prints the exception and goes on, so it is sent again.
    """
    for number in _POLITE:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP, which we keep
            signal.signal(number, _leave)
    before = sys.unraisablehook

    def send_again(lost: sys.UnraisableHookArgs) -> None:
        number = signal_of(lost.exc_value)
        if number is None:
            before(lost)
            return
        timer = threading.Timer(AGAIN_S, signal.pthread_kill, (threading.main_thread().ident, number))
        timer.daemon = True
        timer.start()

    sys.unraisablehook = send_again
    try:
        yield
    finally:
        sys.unraisablehook = before


def signal_of(error: BaseException | None) -> int | None:
    """Returns the signal that raised the exception, or None."""
    if isinstance(error, KeyboardInterrupt):
        return signal.SIGINT
    code = error.code if isinstance(error, SystemExit) else None
    return next((number for number in _POLITE if code == 128 + number), None)


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
