"""Child processes: they end with their parent, even if it is killed, and when they are told to. Light."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> Callable[[], None]:
    """Returns a preexec_fn for subprocess: the kernel sends the child SIGTERM when the thread that started it ends.

    It makes two system calls, looked up here, before the fork. Linux only: elsewhere a child survives a killed parent.
    """
    prctl, parent = ctypes.CDLL(None).prctl if sys.platform == "linux" else None, os.getpid()

    def ask() -> None:
        if prctl:
            prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return ask


def wait_or_kill(process: subprocess.Popen[bytes] | subprocess.Popen[str], grace_s: float) -> None:
    """Waits `grace_s` for a process that was told to end, then kills it. Afterwards it is gone and reaped."""
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(grace_s)
