"""Sizes and digests of the files in a checkpoint's folder, by which a damaged one is recognised."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from services.files import Damaged

META = "meta.json"
"""The file that holds the facts of all others."""
DIGEST_BYTES = 16


class FileFacts(msgspec.Struct, frozen=True):
    """One file as it was written."""

    bytes: int
    blake2b: str


class HashedFile:
    """A file that hashes what is written to it, in a second thread. Use it as a context manager.

    A large file is not read again for its digest. Writing and hashing run at once: `write` returns once the slower of
    the two is done.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._hash = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self._thread = ThreadPoolExecutor(1)

    def __enter__(self) -> HashedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()
        self._file.close()

    def write(self, data: bytes | memoryview) -> int:
        """Writes and hashes all of `data`. After an OSError the file is useless."""
        hashed = self._thread.submit(self._hash.update, data)
        try:
            return self._file.write(data)
        finally:
            hashed.result()

    @property
    def digest(self) -> str:
        """The digest of what was written so far, as FileFacts has it."""
        return self._hash.hexdigest()

    def __getattr__(self, name: str) -> Any:
        """Any other method of the file, such as tell, fileno and close, which do not change its content."""
        return getattr(self._file, name)


def facts_of(folder: Path, hashed: Mapping[str, str] | None = None) -> dict[str, FileFacts]:
    """Returns path below `folder` -> facts of all files except META. Raises OSError.

    `hashed`: the digests of files that were hashed while they were written. Only the others are read.
    """
    sizes, hashed = _sizes(folder), hashed or {}
    read = digests(folder, [name for name in sizes if name not in hashed])
    return {name: FileFacts(size, hashed.get(name) or read[name]) for name, size in sizes.items()}


def check_facts(folder: Path, files: Mapping[str, FileFacts]) -> None:
    """Raises Damaged if the folder has other files than `files`, or other contents in them. Raises OSError."""
    sizes = _sizes(folder)
    if changed := sorted(set(sizes) ^ set(files)) or sorted(
            name for name, facts in files.items() if sizes[name] != facts.bytes):
        raise Damaged(f"{folder / changed[0]} is missing, is not in {META} or has another size", "restore it")
    present = digests(folder, list(files))
    if changed := sorted(name for name, facts in files.items() if present[name] != facts.blake2b):
        raise Damaged(f"{folder / changed[0]} is not as it was written", "restore it")


def digests(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Returns name -> digest. Reads four files at a time, so that shards of large models use the disk's full speed."""
    def digest(name: str) -> str:
        with (folder / name).open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=DIGEST_BYTES)).hexdigest()

    with ThreadPoolExecutor(4) as threads:
        return dict(zip(names, threads.map(digest, names), strict=True))


def _sizes(folder: Path) -> dict[str, int]:
    """Returns path below `folder` -> size of all files except META; -1 if it is neither a file nor a folder."""
    files = {path.relative_to(folder).as_posix(): path.lstat() for path in folder.rglob("*")}
    return {name: facts.st_size if stat.S_ISREG(facts.st_mode) else -1 for name, facts in sorted(files.items())
            if name != META and not stat.S_ISDIR(facts.st_mode)}
