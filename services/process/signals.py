"""How a command handles SIGTERM and SIGHUP: they unwind the stack as Ctrl-C does. Light."""

from __future__ import annotations

import _thread
import asyncio
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

T = TypeVar("T")


async def until_sigterm(work: Awaitable[T]) -> T:
    """Returns the result of `work`, or cancels it on SIGTERM and raises SystemExit of 143 once it has ended.

    The handler of signals_unwind would raise in whatever task runs: a task group makes a group of the exception, and
    asyncio prints its traceback. That handler is back afterwards.
    """
    loop, task, received = asyncio.get_running_loop(), asyncio.current_task(), asyncio.Event()
    assert task is not None
    before = signal.getsignal(signal.SIGTERM)
    loop.add_signal_handler(signal.SIGTERM, lambda: (received.set(), task.cancel()))
    try:
        return await work
    except asyncio.CancelledError:
        if received.is_set():
            raise SystemExit(128 + signal.SIGTERM) from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, before)


AGAIN_S = 0.05
"""Seconds after which a lost Ctrl-C is sent again, and until the first check of whether another signal was lost. Each
later check waits twice as long."""
_POLITE = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def signals_unwind() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP raise SystemExit of 128 + number, so that every `finally` block stops what it started.

    The handlers stay after the block. Inside it no signal is lost: if one comes while a `__del__` or a callback of a
    garbage collection runs, Python prints the exception and continues, so it is sent again. So is one whose exception
    was swallowed. The block ends with 128 + number, even if other code changed that: Ray exits with 1.

    Python itself handles a signal late that comes just before a blocking call of C: when the call ends, or with the
    next signal. Wait in calls that end.
    """
    exiting = _Exiting()
    for number in _POLITE:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP, which we keep
            signal.signal(number, exiting.handle)
    before = sys.unraisablehook

    def send_again(lost: sys.UnraisableHookArgs) -> None:
        number = signal_of(lost.exc_value)
        if number is None:
            before(lost)
        elif number in _POLITE:
            exiting.lost = True
        else:
            timer = threading.Timer(AGAIN_S, _send, (number,))
            timer.daemon = True
            timer.start()

    sys.unraisablehook = send_again
    try:
        yield
    except SystemExit as error:
        error.code = error.code if exiting.number is None else 128 + exiting.number
        raise
    finally:
        exiting.over = True
        sys.unraisablehook = before


def signal_of(error: BaseException | None) -> int | None:
    """Returns the signal that raised the exception, or None."""
    if isinstance(error, KeyboardInterrupt):
        return signal.SIGINT
    code = error.code if isinstance(error, SystemExit) else None
    return next((number for number in _POLITE if code == 128 + number), None)


class _Exiting:
    """Raises SystemExit for a signal, and looks later whether the stack unwinds. If not, raises it again.

    An import of a library may have a bare `except`, and some functions of C clear whatever error they meet.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        """The first signal."""
        self.over = False
        """Whether the block has ended."""
        self.lost = False
        """Whether Python printed the exception and continued."""
        self._looking = False

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """Handles a signal, or a look, which comes the same way: only the main thread knows what it unwinds."""
        looking, self._looking = self._looking, False
        if looking and (self.over or _unwinds()):
            return
        if self.number is None:
            self.number = number
            _thread.start_new_thread(self._look, (number,))  # threading's own start may hold a lock that it needs here
        raise SystemExit(128 + number)

    def _look(self, number: int) -> None:
        pause = AGAIN_S
        while not self.over:
            time.sleep(pause)
            pause *= 2
            if self.over:
                return
            self._looking, lost, self.lost = True, self.lost, False
            if lost:  # and the main thread may wait in a call, which only a real signal ends
                _send(number)
            else:  # a real signal would kill: ray.shutdown takes our handler away
                _thread.interrupt_main(signal.Signals(number))


def _send(number: int) -> None:
    signal.pthread_kill(threading.main_thread().ident, number)  # pyright: ignore[reportArgumentType]  # it has started


def _unwinds() -> bool:
    """Returns whether the code that was interrupted handles the exception of a signal, as a `finally` block does.

    True in an event loop: a coroutine that awaits its cleaning up keeps the exception, and asyncio swallows none.
    """
    events = sys.modules.get("asyncio.events")
    if events is not None and events._get_running_loop() is not None:
        return True
    error = sys.exc_info()[1]
    while error is not None and not isinstance(error, SystemExit | KeyboardInterrupt):
        error = error.__context__
    return error is not None
