"""Files that outlive a process. They are written whole or not at all, and read with a size limit.

A file may be cut short by a full disk, damaged, replaced by a device, or made by an attacker. So each reader here
takes only plain files up to a size, checks their content, and says in one line what is wrong.
"""

from __future__ import annotations

import codecs
import errno
import fcntl
import os
import re
import socket
import stat
from collections.abc import Generator
from contextlib import contextmanager
from io import IOBase
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from services.errors import Fault, UserError

FULL = (errno.ENOSPC, errno.EDQUOT)
"""errno values of a full disk. An OSError from write() has no filename."""
JSON_BYTES = 64 << 20
"""Largest JSON document that is read. The largest that we write, the index of an archive, is far smaller."""

Kind = TypeVar("Kind")


class Damaged(UserError):
    """A file exists, but its content is not what it should be."""


def cache_home() -> Path:
    """Returns gagpo's folder in the user's cache. Whatever lies there can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "gagpo"


@contextmanager
def open_plain(path: Path | str) -> Generator[BinaryIO]:
    """Opens a plain file for reading. Raises Damaged if it is a device or a pipe, or OSError, which names the path."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe without a writer would block
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        if stat.S_ISDIR(mode):  # os.fdopen would name the handle instead of the folder, and leave it open
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise Damaged(f"{path} is not a plain file", "give one")
    with os.fdopen(handle, "rb") as file:
        yield file


def read_bounded(path: Path, most: int = JSON_BYTES) -> bytes:
    """Returns the content of a plain file of at most `most` bytes. Raises Damaged otherwise, or OSError."""
    with open_plain(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        limit = f"{most >> 20} MiB" if most >= 1 << 20 else f"{most} bytes"
        raise Damaged(f"{path} is larger than {limit}", "give a smaller one")
    return data


NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Exceptions for invalid JSON, and for JSON nested too deeply, as a model that repeats itself may write it."""


def without_mark(data: bytes, name: Path | str) -> bytes:
    """Returns the content of a text file, or its first line, without UTF-8's byte-order mark. Raises Damaged, which
    calls the file `name`, for UTF-16. Windows writes both."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise Damaged(f"{name} is UTF-16", "save it as UTF-8")
    return data.removeprefix(codecs.BOM_UTF8)


def read_json(path: Path, kind: type[Kind]) -> Kind:
    """Returns the JSON document of a file as `kind`. Raises Damaged if the file holds none, or OSError."""
    data = read_bounded(path)
    try:
        return msgspec.json.decode(data, type=kind)
    except NOT_JSON as error:
        raise Damaged(f"{path} is damaged ({str(error) or type(error).__name__})",
                      "restore it, or delete it if it can be made again") from None


def write_whole(path: Path, data: str | bytes, *, mode: int | None = None) -> None:
    """Replaces the file atomically: a reader, also after a crash, finds the whole old or the whole new content.

    `mode`: of the new file; 0o600 for a secret. None: whoever may list the folder may read the file. A link at
    `path` is replaced, not followed. Raises OSError, which names a file.
    """
    try:
        draft = path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}.new")
        with replacing(path, draft, mode=_mode(path.parent) if mode is None else mode) as file:
            file.write(data.encode() if isinstance(data, str) else data)
    except OSError as error:
        error.filename = error.filename or str(path)  # an OSError from write() has no filename
        raise


def is_draft(name: str) -> bool:
    """Returns whether a file of this name is a draft of write_whole, which a killed process leaves behind."""
    return re.fullmatch(r"\..+\.new", name) is not None


@contextmanager
def replacing(path: Path, draft: Path, *, mode: int = 0o666) -> Generator[BinaryIO]:
    """Replaces the file by what the block writes, which is durable when the block ends.

    The old file stays until the new one is whole, also if the block raises or the machine ends. `draft`: a file next to
    it that nobody else writes; a process that is killed leaves it behind. `mode`: of the new file, less the umask.
    """
    draft.unlink(missing_ok=True)
    try:
        # O_EXCL: a link or pipe that somebody puts there meanwhile is refused, and an old file keeps no looser mode.
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    sync(path.parent)


def sync(path: Path) -> None:
    """Flushes a file or folder to disk (fsync) before it returns."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Flushes every file and folder below `folder` to disk, then the folder itself."""
    for path in folder.rglob("*"):
        sync(path)
    sync(folder)


def follow_folder(folder: Path) -> None:
    """Sets the umask so that files made from now on are readable by the same users as `folder`."""
    os.umask(0o777 & ~stat.S_IMODE(folder.stat().st_mode) & 0o077)


def open_as_folder(folder: Path) -> None:
    """Makes the files in a folder as readable as the folder. The safetensors writer makes them readable by us alone."""
    for path in folder.iterdir():
        if path.is_file() and not path.is_symlink():
            path.chmod(_mode(folder))


def lock_alone(handle: IOBase | int, path: Path, *, taken: UserError, elsewhere: str) -> None:
    """Locks an open file until it is closed or the process ends. `path` stands for it in errors.

    Raises `taken` if another process holds it, and UserError with the fix `elsewhere` if the storage has no locks.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise taken from None
    except OSError as error:
        raise UserError(f"{path} cannot be locked ({error.strerror})", elsewhere) from None


def check_seen(*folders: Path,
               fix: str = "set runs_dir, and model.path if it is set, to storage that every node sees") -> None:
    """Raises Fault that names the first folder that does not exist on this node.

    Models, checkpoints and exports pass through folders, so every node with an actor must see them. A missing folder
    may be a wrong config, or one node that has not mounted its storage, while others work. The actor cannot know which,
    so it fails, and the supervisor ends the run only if no node can start it.
    """
    for folder in folders:
        if not folder.is_dir():
            raise Fault(f"{folder} is not there on {socket.gethostname()}; {fix}")


def _mode(folder: Path) -> int:
    """Returns the mode for a file in the folder: whoever may list the folder may read the file."""
    return 0o600 | stat.S_IMODE(folder.stat().st_mode) & 0o066
