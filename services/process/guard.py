"""Cleans up after a killed process: a guard ends the processes that it left, and the next owner removes its folder.

A child that somebody else's code starts cannot be made to end with its parent (see child_processes.py), and vLLM's
engine outlives a killed worker and keeps its GPU. The guard is started before the engine is. It waits for the end of
its standard input, which the kernel closes when the worker dies, however it dies. It finds the engine's processes by
their environment, where TMPDIR is the guarded folder. So it sees them from the first moment, while they still start.

A HeldFolder has a lock that shows whether its owner lives. The kernel releases it when the last process that holds it
ends, however it ends.

This file runs as a script of its own and imports the standard library alone.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

GRACE_S = 5.0
"""Time that a process has to end after SIGTERM, before it gets SIGKILL."""
UNKILLABLE_S = 60.0
"""Time after which a process that SIGKILL has not ended is left: it waits for a broken disk or device."""
LOOK_EVERY_S = 0.2
RELEASE = b"all is well"
LOCK = "held"
"""Name of the lock in a HeldFolder."""


class ProcessGuard:
    """Guards the processes whose TMPDIR is `folder` until it is released. It keeps the file descriptors `held` open."""

    def __init__(self, folder: Path, *held: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            pass_fds=held, start_new_session=True)  # a Ctrl-C in the terminal must not end it

    def release(self) -> None:
        """Ends the guard. It touches nothing: the caller has ended the processes itself."""
        self._process.communicate(RELEASE, timeout=GRACE_S)


def processes_in(folder: str) -> list[int]:
    """Returns the ids of the processes that were started with TMPDIR=`folder`, or with a folder inside it.

    An engine's folder lies in its worker's: ending the worker's processes ends the engine too, even if its guard
    ends first.
    """
    mark = f"TMPDIR={folder}".encode()
    return processes_with(lambda variable: variable == mark or variable.startswith(mark + b"/"))


def processes_with(wanted: Callable[[bytes], bool]) -> list[int]:
    """Returns the ids of the processes with an environment variable, as `NAME=value`, that is `wanted`. Linux."""
    processes: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:  # it has ended, or it is another user's
            continue
        if any(map(wanted, variables)):
            processes.append(int(entry.name))
    return processes


def end_all(folder: str, grace_s: float = GRACE_S) -> None:
    """Ends the processes of `folder`: SIGTERM first, SIGKILL after the grace. Returns when two scans find none.

    Processes that cannot be killed are named on stderr and left.
    """
    started, quiet = time.monotonic(), 0
    signalled: set[int] = set()
    while quiet < 2:  # a process between fork and exec still shows its parent's environment
        processes = processes_in(folder)
        late = time.monotonic() - started >= grace_s
        if processes and time.monotonic() - started >= grace_s + UNKILLABLE_S:
            print(f"warning: processes {processes} have not ended {UNKILLABLE_S:g} s after SIGKILL", file=sys.stderr)
            return
        for process in processes:
            if late or process not in signalled:
                signalled.add(process)
                try:
                    os.kill(process, signal.SIGKILL if late else signal.SIGTERM)
                except ProcessLookupError:
                    continue
        quiet = 0 if processes else quiet + 1
        time.sleep(LOOK_EVERY_S)


def short_root(longest: int = 48) -> Path:
    """Returns the folder for temporary files, or /tmp if its path has more than `longest` characters: the path of a
    socket in it may have 107, of which vLLM's takes 59."""
    root = Path(tempfile.gettempdir())
    return root if len(str(root)) <= longest else Path("/tmp")  # noqa: S108 - whoever makes a folder there has it alone


class HeldFolder:
    """A new temporary folder of `mode` in `root`, whose name begins with `prefix`, held until `remove` or the process's
    end.

    First it removes the folders of this prefix that no process holds any more, and ends the processes that still keep
    their temporary files in them. `root` None: the folder for temporary files. `before_removal`: see `sweep`.
    """

    def __init__(self, prefix: str, root: Path | None = None, *, mode: int = 0o700,
                 before_removal: Callable[[Path], object] = lambda _: None) -> None:
        root = Path(tempfile.gettempdir()) if root is None else root
        sweep(prefix, root, before_removal)
        self.path = root / f"{prefix}{secrets.token_hex(4)}"
        self.path.mkdir(mode=mode)
        draft = self.path / "draft"
        self.lock = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        """File descriptor of the lock. A child that gets it holds the folder too."""
        # The lock is taken before the file gets its name: sweep spares a folder without it, or with a held lock.
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        draft.rename(self.path / LOCK)

    def remove(self) -> None:
        """Removes the folder. Call it once."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)


def sweep(prefix: str, root: Path, before_removal: Callable[[Path], object] = lambda _: None) -> None:
    """Removes the folders in `root` whose owners have ended. Keeps those without a lock, and other users' folders.

    `before_removal` takes each folder of ours before its end, to remove files of its owner elsewhere.
    """
    for lock in root.glob(f"{prefix}*/{LOCK}"):
        with suppress(OSError), _opened(lock) as file:  # the folder is another user's, in use, or gone
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            end_all(str(lock.parent))
            if lock.parent.stat().st_uid == os.getuid():  # another user's could name anything that is ours
                before_removal(lock.parent)
            shutil.rmtree(lock.parent, ignore_errors=True)


def _opened(lock: Path) -> BinaryIO:
    """Opens a lock for writing, without which NFS grants none, and without waiting: it may be anything, as a pipe."""
    return os.fdopen(os.open(lock, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC), "r+b", buffering=0)


def main(folder: str) -> None:
    """Waits for the end of standard input, then cleans up unless the guard was released."""
    if sys.stdin.buffer.read() == RELEASE:
        return
    end_all(folder)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
