"""Named tensors as one uint8 buffer, so that a version crosses the object store as one copy and maps read-only.

The digest is the name of the weights: equal digests mean equal names, shapes, dtypes and bytes, on any machine.
Offsets are aligned so that a received buffer can be viewed without a copy. Dtypes travel by name, because numpy
has no bfloat16: a torch tensor is viewed as bytes and back.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

if TYPE_CHECKING:
    import torch

ALIGNMENT = 64
"""Bytes; one cache line, and a multiple of every item size."""

ITEM_SIZES = {"float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "uint8": 1}


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """Where one tensor lies in the buffer."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """A torch dtype without its prefix, for example `bfloat16`."""
    offset: int
    """Bytes from the start of the buffer, a multiple of ALIGNMENT."""

    @property
    def nbytes(self) -> int:
        """Length in bytes, padding excluded."""
        return math.prod(self.shape) * ITEM_SIZES[self.dtype]


Manifest = list[Entry]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Weights ready to publish."""

    manifest: Manifest
    """In order of name."""
    buffer: np.ndarray
    """uint8; padding is zero."""
    digest: str


def pack_tensors(tensors: Iterable[tuple[str, torch.Tensor | np.ndarray]]) -> Packed:
    """Copy named tensors into one buffer and digest it.

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
    """Torch views into the buffer: no copy, so the caller must not write to them.

    Raises ValueError where the manifest reaches beyond the buffer.
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
    """blake2b (128 bits, hex) over names, shapes, dtypes and bytes, in order of name; padding does not count.

    Raises ValueError where the manifest reaches beyond the buffer.
    """
    raw = _checked(manifest, buffer)
    state = hashlib.blake2b(digest_size=16)
    for entry in sorted(manifest, key=lambda e: e.name):
        state.update(f"{entry.name}\0{entry.dtype}\0{','.join(map(str, entry.shape))}\0".encode())
        state.update(raw[entry.offset : entry.offset + entry.nbytes].data)
    return state.hexdigest()


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
