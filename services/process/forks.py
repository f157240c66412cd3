"""Detaches processes that user code forks from our server: closes sockets, resets signal handlers. Light."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals for which a server has handlers."""


@contextmanager
def forks_apart(listener: socket.socket) -> Iterator[None]:
    """Detaches forks of this process from the server of `listener`, until the block ends.

    A fork has a copy of all that its parent has. With the server's handlers, SIGTERM would not end the fork, and would
    stop the server instead: both write to the pipe that wakes the server's loop. With the listener, the fork would keep
    the port of a killed server. With a connection, it would keep a client waiting after the server has closed it.

    A fork still outlives a server that is killed. The kernel could end it with the thread that forked it, but a game
    may fork in a thread that ends sooner. Executed programs are not detached, unless a preexec_fn runs in them.
    """
    forks = _Forks(listener.getsockname()[1])
    os.register_at_fork(before=forks.hold, after_in_parent=forks.release, after_in_child=forks.detach)
    try:
        yield
    finally:
        forks.serving = False


class _Forks:
    """The hooks around each fork of this process. Python cannot unregister them, so they outlive the server."""

    def __init__(self, port: int) -> None:
        self.serving = True
        self._port = port
        self._held = threading.local()

    def hold(self) -> None:
        """Blocks signals in the thread that forks: the child may get one before it is detached."""
        self._held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)

    def release(self) -> None:
        """Delivers the blocked signals."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self._held.mask)

    def detach(self) -> None:
        """Detaches the child from the server."""
        if self.serving:
            signal.set_wakeup_fd(-1)
            for number in _HANDLED:
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP, which we keep
                    signal.signal(number, signal.SIG_DFL)
            _close_sockets(self._port)
        self.release()


def _close_sockets(port: int) -> None:
    """Closes the server's sockets in this process. Their descriptors stay in use, because copies of the server's
    objects close them again when they are collected."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for entry in Path("/dev/fd").iterdir():
        if _serves(port, descriptor := int(entry.name)):
            os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


def _serves(port: int, descriptor: int) -> bool:
    """Returns whether a descriptor is a socket of this port."""
    try:
        one = socket.socket(fileno=descriptor)
    except OSError:  # no socket, or the descriptor of the listing, which is closed by now
        return False
    try:
        return one.family in (socket.AF_INET, socket.AF_INET6) and one.getsockname()[1] == port
    finally:
        one.detach()
