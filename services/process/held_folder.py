"""A temporary folder that is removed even if its owner was killed: the next owner on the machine removes it.

A lock says whether the owner lives. The kernel releases it when the last process that holds it ends, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from services.process.guard import end_all

LOCK = "held"


def short_root(longest: int = 48) -> Path:
    """Returns the folder for temporary files, or /tmp if its path has more than `longest` characters: the path of a
    socket in it may have 107, of which vLLM's takes 59."""
    root = Path(tempfile.gettempdir())
    return root if len(str(root)) <= longest else Path("/tmp")  # noqa: S108 - whoever makes a folder there has it alone


class HeldFolder:
    """A new folder of `mode` in `root`, whose name begins with `prefix`, held until `remove` or the process's end.

    First it removes the folders of this prefix that nobody holds any more, and ends the processes that still keep their
    temporary files in them. `root` None: the folder for temporary files. `leaving`: see `sweep`.
    """

    def __init__(self, prefix: str, root: Path | None = None, *, mode: int = 0o700,
                 leaving: Callable[[Path], object] = lambda _: None) -> None:
        root = Path(tempfile.gettempdir()) if root is None else root
        sweep(prefix, root, leaving)
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


def sweep(prefix: str, root: Path, leaving: Callable[[Path], object] = lambda _: None) -> None:
    """Removes the folders in `root` whose owners have ended. Spares those without a lock, and other users' folders.

    `leaving` takes each folder of ours before its end, to remove what its owner has left elsewhere.
    """
    for lock in root.glob(f"{prefix}*/{LOCK}"):
        with suppress(OSError), _opened(lock) as file:  # the folder is another user's, in use, or gone
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            end_all(str(lock.parent))
            if lock.parent.stat().st_uid == os.getuid():  # another user's could name anything that is ours
                leaving(lock.parent)
            shutil.rmtree(lock.parent, ignore_errors=True)


def _opened(lock: Path) -> BinaryIO:
    """Opens a lock for writing, without which NFS grants none, and without waiting: it may be anything, as a pipe."""
    return os.fdopen(os.open(lock, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC), "r+b", buffering=0)
