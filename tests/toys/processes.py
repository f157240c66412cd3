"""Looks at other processes, each of which may end at any moment: also between two looks at it."""

from __future__ import annotations

import psutil
from waiting import wait_until


def gone(pid: int) -> bool:
    """Whether a process has ended. A zombie has: only its parent is missing to reap it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def name_of(process: psutil.Process) -> str:
    """Returns the name of a process; empty if it has ended."""
    try:
        return process.name() if process.status() != psutil.STATUS_ZOMBIE else ""
    except psutil.NoSuchProcess:
        return ""


def words_of(process: psutil.Process) -> list[str]:
    """Returns the command line of a process; none if it has ended."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def only_child(start: str) -> psutil.Process:
    """Waits until one living process below this one has a name that begins with `start`, and returns it.

    The one before it may still be ending, and one that a server forks has the server's name for a moment.
    """
    found: list[psutil.Process] = []

    def one() -> bool:
        found[:] = [each for each in psutil.Process().children(recursive=True) if name_of(each).startswith(start)]
        return len(found) == 1

    wait_until(one)
    return found[0]
