"""A process that a user's code forks from a server of ours is no part of the server. Light."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals for which a server has handlers."""


@contextmanager
def forks_apart(listener: socket.socket) -> Iterator[None]:
    """Makes forks of this process let go of the server of `listener`, until the block ends.

    A fork has a copy of all that its parent has. With the server's handlers, SIGTERM would not end it, and would stop
    the server instead: both write to the pipe that wakes the server's loop. With the listener it would keep the port
    of a server that was killed. With a connection it would keep a client waiting that the server has left.

    A fork still outlives a server that is killed. The kernel could end it with the thread that forked it, but a game
    may fork in a thread that ends sooner. Programs that are executed are not touched, unless by a preexec_fn.
    """
    forks = _Forks(listener.getsockname()[1])
    os.register_at_fork(before=forks.hold, after_in_parent=forks.release, after_in_child=forks.leave)
    try:
        yield
    finally:
        forks.serving = False


class _Forks:
    """The hooks around each fork of this process. Nobody can take them away, so they outlive the server."""

    def __init__(self, port: int) -> None:
        self.serving = True
        self._port = port
        self._held = threading.local()

    def hold(self) -> None:
        """Lets signals wait in the thread that forks: the child may get one before it has left the server."""
        self._held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)

    def release(self) -> None:
        """Delivers the signals that waited."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self._held.mask)

    def leave(self) -> None:
        """Leaves the server, in the child."""
        if self.serving:
            signal.set_wakeup_fd(-1)
            for number in _HEARD:
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP, which we keep
                    signal.signal(number, signal.SIG_DFL)
            _let_go(self._port)
        self.release()


def _let_go(port: int) -> None:
    """Closes the server's sockets in this process. Their descriptors stay taken: copies of the server's objects close
    them again when they are collected."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for entry in Path("/dev/fd").iterdir():
        if _is_of(port, descriptor := int(entry.name)):
            os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


def _is_of(port: int, descriptor: int) -> bool:
    try:
        one = socket.socket(fileno=descriptor)
    except OSError:  # it is no socket, or that of the listing, which is closed by now
        return False
    try:
        return one.family in (socket.AF_INET, socket.AF_INET6) and one.getsockname()[1] == port
    finally:
        one.detach()
