"""Checks a model before it is loaded: the headers of its safetensors files, and its tokenizer. Light.

A header states its own length and the place of each tensor. In a damaged or malicious file both may be wrong, so they
are compared with the size of the file before anything of that length is read.
"""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

from services.files import Damaged, read_bounded, read_json

HEADER_BYTES = 100 << 20
"""Largest header that the safetensors format allows."""
INDEX = "model.safetensors.index.json"
OF_MISTRAL = "consolidated*"
"""Files that hold the weights once more, in Mistral's own format, next to those in the format of transformers."""
TOKENIZER_BYTES = 256 << 20
BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32,
        "U16": 16, "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8}


def tensor_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Returns a dict from tensor name to shape. Raises Damaged if the file is cut short or not a safetensors file."""
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


def weight_files(folder: Path) -> list[Path]:
    """Returns the existing safetensors files of the model in `folder`: those that its index names, or without an index
    all but Mistral's own. Raises Damaged if the index cannot be read."""
    files = sorted(folder.glob("*.safetensors"))
    named = read_json(folder / INDEX, dict[str, Any]).get("weight_map") if (folder / INDEX).exists() else None
    if isinstance(named, dict):
        names = set(map(str, named.values()))
        return [file for file in files if file.name in names]
    return [file for file in files if not file.match(OF_MISTRAL)]


def folder_parameters(folder: Path) -> int:
    """Returns the number of weights in a model's safetensors files, else an estimate: two bytes each in *.bin files."""
    half_precision = sum(file.stat().st_size // 2 for file in folder.glob("*.bin"))
    tensors = (shape for file in weight_files(folder) for shape in tensor_shapes(file).values())
    return sum(prod(shape) for shape in tensors) or half_precision


def read_tokenizer(file: Path) -> Any:
    """Returns the tokenizer of a tokenizer.json. Raises Damaged if the file holds none."""
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_buffer(read_bounded(file, TOKENIZER_BYTES))
    except Damaged:
        raise
    except Exception as error:  # tokenizers raises no narrower type
        why = " ".join(str(error).split())[:100]
        raise Damaged(f"{file} is not a complete tokenizer ({why})", "copy the model again") from None


def _shape(tensor: Any, held: int) -> tuple[int, ...]:
    shape, (begin, end) = tuple(int(length) for length in tensor["shape"]), tensor["data_offsets"]
    bits = BITS.get(tensor["dtype"])
    if min((0, *shape)) < 0 or not 0 <= begin <= end <= held or (bits and prod(shape) * bits != 8 * (end - begin)):
        raise ValueError("a tensor lies outside the file")
    return shape


def _damaged(file: Path, why: str) -> Damaged:
    return Damaged(f"{file} is not a complete safetensors file ({why})", "copy the model again")
