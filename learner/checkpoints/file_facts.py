"""Sizes and digests of the files in a checkpoint's folder, by which a damaged one is recognised."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from services.files import Damaged

META = "meta.json"
"""The file that holds the facts of the others."""


class FileFacts(msgspec.Struct, frozen=True):
    """One file as it was written."""

    bytes: int
    blake2b: str


def facts_of(folder: Path) -> dict[str, FileFacts]:
    """Returns path below `folder` -> facts of all files except META. Raises OSError."""
    sizes = _listing(folder)
    return {name: FileFacts(sizes[name], digest) for name, digest in digests(folder, list(sizes)).items()}


def check_facts(folder: Path, files: Mapping[str, FileFacts]) -> None:
    """Raises Damaged if a file in the folder is not as it was written. Raises OSError."""
    there = _listing(folder)
    if changed := sorted(set(there) ^ set(files)) or sorted(
            name for name, facts in files.items() if there[name] != facts.bytes):
        raise Damaged(f"{folder / changed[0]} is missing, is too many or has another size", "restore it")
    found = digests(folder, list(files))
    if changed := sorted(name for name, facts in files.items() if found[name] != facts.blake2b):
        raise Damaged(f"{folder / changed[0]} is not as it was written", "restore it")


def digests(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Returns name -> digest. Reads four files at a time, so that shards of large models use the disk's full speed."""
    def digest(name: str) -> str:
        with (folder / name).open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()

    with ThreadPoolExecutor(4) as threads:
        return dict(zip(names, threads.map(digest, names), strict=True))


def _listing(folder: Path) -> dict[str, int]:
    """Returns path below `folder` -> size of all files except META; -1 if it is neither a file nor a folder."""
    files = {path.relative_to(folder).as_posix(): path.lstat() for path in folder.rglob("*")}
    return {name: facts.st_size if stat.S_ISREG(facts.st_mode) else -1 for name, facts in sorted(files.items())
            if name != META and not stat.S_ISDIR(facts.st_mode)}
