"""Files that outlive a process: written whole or not at all, read within bounds.

A file may be torn by a full disk, damaged, replaced by a device, or made by somebody else to do harm. So a reader here
takes only plain files up to a size, checks what they hold, and says in one line what is wrong.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TypeVar

import msgspec

from services.errors import UserError

JSON_BYTES = 64 << 20
"""The largest JSON document that is read; the largest that we write, an index of an archive, is far smaller."""

Kind = TypeVar("Kind")


class Damaged(UserError):
    """A file that is there does not hold what it should."""


def read_bounded(path: Path, most: int = JSON_BYTES) -> bytes:
    """The bytes of a plain file of at most `most`. Raises Damaged for anything else, FileNotFoundError without it."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe without a writer would block for good
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise Damaged(f"{path} is not a plain file", "give one")
        data = file.read(most + 1)
    if len(data) > most:
        raise Damaged(f"{path} is larger than {most >> 20} MiB", "give a smaller one")
    return data


def read_json(path: Path, kind: type[Kind], most: int = JSON_BYTES) -> Kind:
    """The JSON document of a file as `kind`. Raises Damaged where it is no such thing, FileNotFoundError without it."""
    data = read_bounded(path, most)
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(f"{path} is damaged ({str(error) or type(error).__name__})",
                      "restore it, or delete it where it can be made again") from None


def write_whole(path: Path, data: str | bytes) -> None:
    """Replaces the file in one step: whoever reads it, now or after a crash, finds all of the old or all of the new."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _mode(path.parent)), "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    sync(path.parent)


def sync(path: Path) -> None:
    """What was written to the file or folder is on disk when this returns."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """fsync of every file and folder below, then of the folder."""
    for path in folder.rglob("*"):
        sync(path)
    sync(folder)


def follow_folder(folder: Path) -> None:
    """Everything that this process makes from now on is as open to others as `folder` is: one rule for all files."""
    os.umask(0o777 & ~stat.S_IMODE(folder.stat().st_mode) & 0o077)


def open_as_folder(folder: Path) -> None:
    """Opens the files in a folder as far as the folder itself: what writes safetensors makes them its owner's alone."""
    for path in folder.iterdir():
        if path.is_file() and not path.is_symlink():
            path.chmod(_mode(folder))


def _mode(folder: Path) -> int:
    """Mode of a file in the folder: readable by whoever may list the folder."""
    return 0o600 | stat.S_IMODE(folder.stat().st_mode) & 0o066
