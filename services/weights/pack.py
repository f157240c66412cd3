"""Packs named tensors into one uint8 buffer, so that Ray's object store sends it as one copy, mapped read-only.

The digest identifies the weights: equal digests mean equal names, shapes, dtypes and bytes, on any machine. Offsets are
aligned so that a received buffer can be viewed without a copy. Dtypes are sent by name and tensors as bytes, because
numpy has no bfloat16.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from blake3 import blake3

if TYPE_CHECKING:
    import torch

ALIGNMENT = 64
"""Alignment of tensors in bytes: one cache line, and a multiple of every item size."""

SIDE_BY_SIDE = 64 << 20
"""Versions of at least so many bytes are hashed on all cores."""
ITEM_SIZES = {"float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1,
              "bool": 1}


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


class TensorPiece(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive bytes of one tensor: the rows that a rank of the learner holds, or none."""

    tensor: int
    """Index into the manifest."""
    start: int
    """Place of the first byte in the tensor."""
    size: int
    """Number of bytes."""


Share = list[TensorPiece]
"""Pieces of a version. Their bytes, one after another, are one stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Weights ready to publish."""

    manifest: Manifest
    """The tensors, sorted by name."""
    buffer: np.ndarray
    """uint8; padding is zero."""
    digest: str


def layout(tensors: Iterable[tuple[str, tuple[int, ...], str]]) -> tuple[Manifest, int]:
    """Returns the places of tensors, given as (name, shape, dtype), and the bytes of their buffer.

    Raises ValueError for a dtype outside ITEM_SIZES.
    """
    manifest: Manifest = []
    end = 0
    for name, shape, dtype in sorted(tensors):
        if dtype not in ITEM_SIZES:
            raise ValueError(f"{name}: cannot pack {dtype}")
        entry = Entry(name=name, shape=shape, dtype=dtype, offset=end)
        manifest.append(entry)
        end = -(-(end + entry.nbytes) // ALIGNMENT) * ALIGNMENT
    return manifest, end


def cut(share: Share, at: int, size: int) -> Iterator[tuple[TensorPiece, slice]]:
    """Maps bytes [at, at + size) of a share's stream to tensors. Yields each piece and its slice of these bytes."""
    place = 0
    for piece in share:
        begin, end = max(place, at), min(place + piece.size, at + size)
        if begin < end:
            yield TensorPiece(piece.tensor, piece.start + begin - place, end - begin), slice(begin - at, end - at)
        place += piece.size


def pack_tensors(tensors: Iterable[tuple[str, torch.Tensor | np.ndarray]]) -> Packed:
    """Copies named tensors into one buffer and computes its digest.

    Raises ValueError for a dtype outside ITEM_SIZES.
    """
    named = dict(tensors)
    manifest, size = layout((name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
                            for name, tensor in named.items())
    buffer = np.zeros(size, dtype=np.uint8)
    for entry in manifest:
        buffer[entry.offset : entry.offset + entry.nbytes] = _bytes_of(named[entry.name])
    return Packed(manifest=manifest, buffer=buffer, digest=digest(manifest, buffer))


def pack_folder(folder: Path, dtype: str) -> Packed:
    """Packs the model of a Hugging Face folder in `dtype`, a torch dtype by name. The same folder has the same digest.

    Tied tensors are packed under both names, as the learner sends them. For a folder without a model it raises the
    errors of transformers.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # it would overwrite the run's own progress view
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), trust_remote_code=False)
    return pack_tensors(model.state_dict().items())


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
    """Returns BLAKE3 (128 bits, hex) over names, shapes, dtypes and bytes, in order of name; padding does not count.

    All cores hash a large version together. Raises ValueError if the manifest reaches beyond the buffer.
    """
    raw = _checked(manifest, buffer)
    state = blake3(max_threads=blake3.AUTO if len(raw) >= SIDE_BY_SIDE else 1)
    for entry in sorted(manifest, key=lambda e: e.name):
        state.update(f"{entry.name}\0{entry.dtype}\0{','.join(map(str, entry.shape))}\0".encode())
        state.update(raw[entry.offset : entry.offset + entry.nbytes].data)
    return state.hexdigest(length=16)


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
