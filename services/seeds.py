"""Seeds are hashes of what is sampled, never of who samples it or of which attempt it is."""

from __future__ import annotations

import hashlib


def seed_for(*parts: int | str) -> int:
    """A 31-bit seed from the run seed and the names of what it seeds, for example (run_seed, group, k, turn).

    The same parts give the same seed on every machine and in every process, so an episode that is tried again
    draws the same numbers.
    """
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big") & 0x7FFFFFFF
