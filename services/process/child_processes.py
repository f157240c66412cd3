"""Child processes: they end with their parent, even if it is killed, and when asked to. Light."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from services.errors import DeadlineExceeded
from services.process import death_signal


def ending_with_parent(command: Sequence[str | os.PathLike[str]]) -> list[str]:
    """Returns a command line that becomes `command` and that the kernel ends by SIGTERM when the thread that starts it
    ends.

    A preexec_fn would need no second program, but Python code between fork and exec can crash in a process with
    threads, and ours have those of Ray, torch and Arrow. Linux only: elsewhere a child survives a killed parent.
    """
    words = [os.fspath(word) for word in command]
    if sys.platform != "linux":
        return words
    return [sys.executable, "-I", "-S", death_signal.__file__, str(os.getpid()), *words]


def wait_or_kill(process: subprocess.Popen[bytes] | subprocess.Popen[str], grace_s: float) -> None:
    """Waits `grace_s` for a process that was asked to end, then kills it. Afterwards it is gone and reaped.

    Raises DeadlineExceeded if it is not: a process that waits for a broken disk or device cannot be killed.
    """
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            raise DeadlineExceeded(f"process {process.pid} has not ended {grace_s:g} s after SIGKILL") from None
