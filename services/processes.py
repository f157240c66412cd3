"""Child processes that end with their parent, even where it is killed. Light."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> Callable[[], None]:
    """A preexec_fn for subprocess: the kernel sends the child SIGTERM once the thread that starts it has ended.

    It makes two system calls, looked up here, before the fork. Linux only; elsewhere a killed parent leaves its child.
    """
    prctl, parent = ctypes.CDLL(None).prctl if sys.platform == "linux" else None, os.getpid()

    def ask() -> None:
        if prctl:
            prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return ask
