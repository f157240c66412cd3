"""A checksum of weights that their device computes, in shards and without a copy in host memory.

The checksum of a tensor is the sum of w(i) times the bits of element i, modulo 2^64. The factors w(i) are odd and
follow from the place i alone, so that the sums of a tensor's shards add up to the sum of the tensor. One changed
element always changes the sum, and elements that change places change it except by a very small chance. The digest
hashes names, shapes, dtypes and sums. It finds faults on the way. Unlike BLAKE3 it is no defence against attackers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from blake3 import blake3

from services.weights import pack
from services.weights.pack import Entry

if TYPE_CHECKING:
    from torch import Tensor

MARK = "sums-"
"""Begins the digests of this file."""
CHUNK = 1 << 22
"""Elements that are summed at once: their factors take 8 bytes each."""
SPREAD, MIX = 0x9E3779B97F4A7C15 - 2**64, 0xBF58476D1CE4E5B9 - 2**64
"""Odd numbers of splitmix64 (Steele, Lea and Flood 2014), as signed integers."""


def element_sum(part: Tensor, first: int) -> Tensor:
    """Returns the sum of a part of a tensor, as an int64 scalar on its device.

    `first`: place of the part's first element among all elements of the tensor in row-major order.
    """
    import torch

    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = part.detach().reshape(-1).view(words[part.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=part.device)
    for at in range(0, len(bits), CHUNK):
        chunk = bits[at : at + CHUNK].to(torch.int64)
        factor = torch.arange(first + at, first + at + len(chunk), device=part.device).mul_(SPREAD)
        factor ^= factor >> 32
        total += chunk.mul_(factor.mul_(MIX).bitwise_or_(1)).sum()
    return total


def combined(manifest: Sequence[Entry], *sums: Sequence[int]) -> str:
    """Returns the digest of a version. `sums`: of each tensor of the manifest, by each process that holds a part."""
    state = blake3()
    for entry, *parts in sorted(zip(manifest, *sums, strict=True), key=lambda row: row[0].name):
        shape = ",".join(map(str, entry.shape))
        state.update(f"{entry.name}\0{entry.dtype}\0{shape}\0{sum(parts) % 2**64:x}\0".encode())
    return MARK + state.hexdigest(length=16)


def digest_like(like: str, manifest: Sequence[Entry], buffer: np.ndarray | bytes) -> str:
    """Returns the digest of packed weights in host memory, by the function with which `like` was made.

    Raises ValueError if the manifest reaches beyond the buffer.
    """
    if not like.startswith(MARK):
        return pack.digest(manifest, buffer)
    tensors = pack.unpack(manifest, buffer)
    return combined(manifest, [int(element_sum(tensors[entry.name], 0)) for entry in manifest])
