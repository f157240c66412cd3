"""Locks a file for one process alone, with errors for people."""

from __future__ import annotations

import fcntl
from io import IOBase
from pathlib import Path

from services.errors import UserError


def lock_alone(handle: IOBase | int, path: Path, *, taken: UserError, elsewhere: str) -> None:
    """Locks an open file until it is closed or the process ends. `path` is what it stands for, for errors.

    Raises `taken` if another process holds it, and UserError with the fix `elsewhere` if the storage has no locks.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise taken from None
    except OSError as error:
        raise UserError(f"{path} cannot be locked ({error.strerror})", elsewhere) from None
