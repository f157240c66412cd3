"""Digests of data, and versions that name them.

If task ids are rows, other data has the same ids. Such an environment names its data at the end of its version, so that
runs, servers and results with other data are told apart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

_MARK = "+data-"


def digest_of(parts: Iterable[str]) -> str:
    """Returns blake2b over the texts, in order, as if each were a line."""
    total = hashlib.blake2b(digest_size=16)
    for number, part in enumerate(parts):
        total.update((b"\n" if number else b"") + part.encode())
    return total.hexdigest()


def with_data(version: str, digest: str) -> str:
    """Returns the version with the beginning of its data's digest, such as `1+data-5f3a9c21`."""
    return f"{version}{_MARK}{digest[:8]}"


def agrees(recorded: str, now: str) -> bool:
    """Returns whether two texts that end with a version say the same. A recorded one may be from before versions named
    the data: nobody knows its data then."""
    return recorded in (now, now.rpartition(_MARK)[0] or now)
