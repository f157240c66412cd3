"""Child processes: that they end with their parent, even where it is killed, and that they end when told. Light."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
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


def wait_or_kill(process: subprocess.Popen[bytes] | subprocess.Popen[str], grace_s: float) -> None:
    """For one that has been told to end: SIGKILL once the grace is over. It is gone afterwards, and no zombie."""
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(grace_s)
