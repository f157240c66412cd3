"""Packs named tensors into one uint8 buffer, so that Ray's object store sends it as one copy, mapped read-only.

The digest identifies the weights: equal digests mean equal names, shapes, dtypes and bytes, on any machine. Offsets are
aligned so that a received buffer can be viewed without a copy. Dtypes are sent by name and tensors as bytes, because
numpy has no bfloat16.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

if TYPE_CHECKING:
    import torch

ALIGNMENT = 64
"""Alignment of tensors in bytes: one cache line, and a multiple of every item size."""

SIDE_BY_SIDE = 1 << 30
"""Bytes of a version from which on its digest is made of pieces."""
PIECE = 64 << 20
"""Bytes of such a piece."""
ITEM_SIZES = {"float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "uint8": 1}


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """The place of one tensor in the buffer."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """A torch dtype without its prefix, for example `bfloat16`."""
    offset: int
    """Bytes from the start of the buffer, a multiple of ALIGNMENT."""

    @property
    def nbytes(self) -> int:
        """Returns the length in bytes, without padding."""
        return math.prod(self.shape) * ITEM_SIZES[self.dtype]


Manifest = list[Entry]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Weights ready to publish."""

    manifest: Manifest
    """The tensors, sorted by name."""
    buffer: np.ndarray
    """uint8; padding is zero."""
    digest: str


def pack_tensors(tensors: Iterable[tuple[str, torch.Tensor | np.ndarray]]) -> Packed:
    """Copies named tensors into one buffer and computes its digest.

    Raises ValueError for a dtype outside ITEM_SIZES.
    """
    ordered = sorted(tensors, key=lambda pair: pair[0])
    manifest: Manifest = []
    end = 0
    for name, tensor in ordered:
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in ITEM_SIZES:
            raise ValueError(f"{name}: cannot pack {dtype}")
        entry = Entry(name=name, shape=tuple(tensor.shape), dtype=dtype, offset=end)
        manifest.append(entry)
        end = -(-(end + entry.nbytes) // ALIGNMENT) * ALIGNMENT
    buffer = np.zeros(end, dtype=np.uint8)
    for entry, (_, tensor) in zip(manifest, ordered, strict=True):
        buffer[entry.offset : entry.offset + entry.nbytes] = _bytes_of(tensor)
    return Packed(manifest=manifest, buffer=buffer, digest=digest(manifest, buffer))


def unpack(manifest: Sequence[Entry], buffer: np.ndarray | bytes) -> dict[str, torch.Tensor]:
    """Returns torch views into the buffer, without a copy. The caller must not write to them.

    Raises ValueError if the manifest reaches beyond the buffer.
    """
    import torch

    raw = _checked(manifest, buffer)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable")  # and nobody writes to it
        flat = torch.frombuffer(raw.data, dtype=torch.uint8)
    return {
        entry.name: flat[entry.offset : entry.offset + entry.nbytes]
        .view(getattr(torch, entry.dtype))
        .reshape(entry.shape)
        for entry in manifest
    }


def digest(manifest: Sequence[Entry], buffer: np.ndarray | bytes) -> str:
    """Returns blake2b (128 bits, hex) over names, shapes, dtypes and bytes, in order of name; padding does not count.

    From SIDE_BY_SIDE bytes on, the hash is over the hashes of pieces, which all cores work on: one core takes 18 s for
    7B parameters in bfloat16. Raises ValueError if the manifest reaches beyond the buffer.
    """
    raw, state = _checked(manifest, buffer), hashlib.blake2b(digest_size=16)
    ordered = sorted(manifest, key=lambda e: e.name)
    hashed = _hashes if sum(entry.nbytes for entry in ordered) >= SIDE_BY_SIDE else _bytes
    for entry, parts in zip(ordered, hashed([raw[e.offset : e.offset + e.nbytes] for e in ordered]), strict=True):
        state.update(f"{entry.name}\0{entry.dtype}\0{','.join(map(str, entry.shape))}\0".encode())
        state.update(parts)
    return state.hexdigest()


def _bytes(tensors: Sequence[np.ndarray]) -> Iterator[memoryview]:
    return (tensor.data for tensor in tensors)


def _hashes(tensors: Sequence[np.ndarray]) -> Iterator[bytes]:
    """Yields the hashes of each tensor's pieces, one after the other. hashlib lets other threads run meanwhile."""
    with ThreadPoolExecutor() as threads:
        pieces = [[threads.submit(_hash, tensor[at : at + PIECE]) for at in range(0, max(1, len(tensor)), PIECE)]
                  for tensor in tensors]
        for of_tensor in pieces:
            yield b"".join(piece.result() for piece in of_tensor)


def _hash(piece: np.ndarray) -> bytes:
    return hashlib.blake2b(piece.data, digest_size=16).digest()


def _bytes_of(tensor: torch.Tensor | np.ndarray) -> np.ndarray:
    if isinstance(tensor, np.ndarray):
        return np.ascontiguousarray(tensor).reshape(-1).view(np.uint8)
    import torch

    return tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy()


def _checked(manifest: Iterable[Entry], buffer: np.ndarray | bytes) -> np.ndarray:
    raw = np.frombuffer(buffer, dtype=np.uint8)
    need = max((entry.offset + entry.nbytes for entry in manifest), default=0)
    if need > len(raw):
        raise ValueError(f"the manifest needs {need} bytes, the buffer has {len(raw)}")
    return raw
