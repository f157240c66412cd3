"""Looks at a model before it is loaded: the headers of its safetensors files, and its tokenizer. Light.

A header says how long it is and where each tensor lies; in a file that is broken, or made to do harm, both lie. So the
lengths are held against the file's own before anything of that size is read.
"""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

from services.files import Damaged, read_bounded

HEADER_BYTES = 100 << 20
"""The format's own limit."""
TOKENIZER_BYTES = 256 << 20
BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32,
        "U16": 16, "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8}


def tensor_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Name -> shape of all tensors. Raises Damaged where the file is cut off or no safetensors."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= min(HEADER_BYTES, size - 8):
            raise _damaged(file, f"its header has {length} bytes, and the file {size}")
        text = stream.read(length)
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        shapes = {str(name): _shape(tensor, size - 8 - length) for name, tensor in header.items()}
        end = max((int(tensor["data_offsets"][1]) for tensor in header.values()), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise _damaged(file, f"{type(error).__name__} in its header") from None
    if end != size - 8 - length:
        raise _damaged(file, f"its tensors end at {end}, and there are {size - 8 - length} bytes of them")
    return shapes


def read_tokenizer(file: Path) -> Any:
    """The tokenizer of a tokenizer.json. Raises Damaged where it is none."""
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_buffer(read_bounded(file, TOKENIZER_BYTES))
    except Damaged:
        raise
    except Exception as error:  # tokenizers raises nothing narrower
        why = " ".join(str(error).split())[:100]
        raise Damaged(f"{file} is no whole tokenizer ({why})", "copy the model again") from None


def _shape(tensor: Any, held: int) -> tuple[int, ...]:
    shape, (begin, end) = tuple(int(length) for length in tensor["shape"]), tensor["data_offsets"]
    bits = BITS.get(tensor["dtype"])
    if min((0, *shape)) < 0 or not 0 <= begin <= end <= held or (bits and prod(shape) * bits != 8 * (end - begin)):
        raise ValueError("a tensor lies outside the file")
    return shape


def _damaged(file: Path, why: str) -> Damaged:
    return Damaged(f"{file} is no whole safetensors file ({why})", "copy the model again")
