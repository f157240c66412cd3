"""The file through which a version's weights reach vLLM's process, which maps it. All workers of a machine share it.

The file is named by the digest of the weights. Locks (flock) show who uses it, and end with their process:

    write   exclusive: the first worker checks the weights and writes the file; the others wait for it
    use     shared: it is complete, and workers load it side by side
    end     exclusive, if no other worker uses it: it is removed

A file that is shorter than the weights was left by a worker that died. The next worker writes it again.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import numpy as np

from services.weights.checksum import digest_like
from services.weights.pack import Manifest

MARK = "gagpo-weights-"
SHARED = Path("/dev/shm")  # noqa: S108  # the files in it belong to this user alone


@contextmanager
def loaded_from_file(manifest: Manifest, buffer: np.ndarray, digest: str) -> Iterator[tuple[str, bytes]]:
    """Yields the arguments of `load_packed` (extension.py). Raises ValueError as weights_file does."""
    with weights_file(manifest, buffer, digest) as path:
        yield str(path), msgspec.json.encode(manifest)


@contextmanager
def weights_file(manifest: Manifest, buffer: np.ndarray, digest: str, *, folder: Path | None = None) -> Iterator[Path]:
    """Yields the path of a file with the weights of this digest, and removes the file after its last user.

    `folder`: by default shared memory, or the folder for temporary files if that has no room. Raises ValueError if this
    worker has to write the file and `buffer` has another digest.
    """
    name = f"{MARK}{os.getuid()}-{digest}"
    for place in {folder} if folder else {SHARED, Path(tempfile.gettempdir())}:
        _sweep(place)
    path = (folder or place_of(name, buffer.nbytes)) / name
    descriptor = _opened(path, manifest, buffer, digest)
    try:
        yield path
    finally:
        _release(path, descriptor)


def place_of(name: str, size: int) -> Path:
    """Returns the folder for a file of this size: shared memory if the file is there already or fits, else the folder
    for temporary files. A container's shared memory may have 64 MB."""
    if (SHARED / name).exists() or (SHARED.is_dir() and shutil.disk_usage(SHARED).free > size):
        return SHARED
    return Path(tempfile.gettempdir())


def _opened(path: Path, manifest: Manifest, buffer: np.ndarray, digest: str) -> int:
    """Returns a descriptor of the complete file, with a shared lock."""
    while True:
        descriptor = _open(path, os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if not _complete(descriptor, buffer):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                # Another worker may have written or removed the file before this one got the lock.
                if not _complete(descriptor, buffer) and os.fstat(descriptor).st_nlink:
                    _write(descriptor, manifest, buffer, digest)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            if _complete(descriptor, buffer):
                return descriptor
        except BaseException:
            _release(path, descriptor)
            raise
        os.close(descriptor)


def _open(path: Path, flags: int = 0) -> int:
    """Returns a descriptor of the file. Raises PermissionError if it belongs to another user."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)
    if os.fstat(descriptor).st_uid != os.getuid():
        os.close(descriptor)
        raise PermissionError(f"{path} belongs to another user")
    return descriptor


def _complete(descriptor: int, buffer: np.ndarray) -> bool:
    """Whether the file has all its bytes and has not been removed."""
    status = os.fstat(descriptor)
    return status.st_nlink > 0 and status.st_size == buffer.nbytes


def _write(descriptor: int, manifest: Manifest, buffer: np.ndarray, digest: str) -> None:
    arrived = digest_like(digest, manifest, buffer)
    if arrived != digest:
        raise ValueError(f"weights arrived with digest {arrived}, expected {digest}")
    os.ftruncate(descriptor, 0)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(np.ascontiguousarray(buffer).data)


def _release(path: Path, descriptor: int) -> None:
    """Removes the file unless another worker uses it. Closes the descriptor, which releases its lock."""
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink:  # else the path may be another file by now
            path.unlink()
    os.close(descriptor)


def _sweep(place: Path) -> None:
    """Removes this user's files that no worker uses, because theirs were killed. Keeps files of other users."""
    for path in place.glob(f"{MARK}{os.getuid()}-*"):
        with suppress(OSError):  # it is gone, another user's, a folder or a link
            _release(path, _open(path))
