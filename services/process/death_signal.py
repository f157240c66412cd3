"""Lets the kernel end a process with its parent, however the parent ends.

This file also runs as a script of its own, which becomes another program, and imports the standard library alone.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(number: signal.Signals) -> None:
    """Makes the kernel send a signal to this process when the thread that started it ends. It outlives execvp. Linux
    only: elsewhere it does nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def main(parent: int, command: list[str]) -> None:
    """Becomes `command`, which SIGTERM ends with its parent. Exits if the parent has ended already."""
    end_with_parent(signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(1)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and what is executed would inherit that
    os.execvp(command[0], command)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
