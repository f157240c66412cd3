"""State keys: which steps share a value.

Two steps share one if and only if they belong to the same group, play the same task and show the same raw feedback
text, character by character (paper, section 3: exact textual match within the rollout group).
"""

from __future__ import annotations

import hashlib


def state_key(group: str, task: str, anchor: str) -> str:
    """32 hexadecimal digits. Each part is preceded by its length, so no two triples run together."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (group, task, anchor):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.hexdigest()
