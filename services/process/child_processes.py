"""Child processes: they end with their parent, even if it is killed, and when asked to. Light.

This file also runs as a script of its own, which becomes another program. It then imports the standard library alone.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def ending_with_parent(command: Sequence[str | os.PathLike[str]]) -> list[str]:
    """Returns a command line that becomes `command` and that the kernel ends by SIGTERM when the thread that starts it
    ends.

    A preexec_fn would need no second program, but Python code between fork and exec can crash in a process with
    threads, and ours have those of Ray, torch and Arrow. Linux only: elsewhere a child survives a killed parent.
    """
    words = [os.fspath(word) for word in command]
    if sys.platform != "linux":
        return words
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *words]


def end_with_parent(number: signal.Signals) -> None:
    """Makes the kernel send a signal to this process when the thread that started it ends. It outlives execvp. Linux
    only: elsewhere it does nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


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
            from services.errors import DeadlineExceeded

            raise DeadlineExceeded(f"process {process.pid} has not ended {grace_s:g} s after SIGKILL") from None


def main(parent: int, command: list[str]) -> None:
    """Becomes `command`, which SIGTERM ends with its parent. Exits if the parent has ended already."""
    end_with_parent(signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(1)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and what is executed would inherit that
    os.execvp(command[0], command)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
