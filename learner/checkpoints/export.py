"""A model's folder as transformers and vLLM load it: weights, config and tokenizer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from learner.checkpoints.file_facts import HashedFile
from services.files import open_as_folder, read_json, sync_tree, write_whole

TOKENIZER_FILES = ("tokenizer*", "special_tokens_map.json", "vocab.json", "merges.txt", "added_tokens.json",
                   "chat_template*")
GENERATION = "generation_config.json"
MODEL = "model.safetensors"
DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
"""dtype of weights -> its name in a safetensors header."""


@contextmanager
def disk_errors() -> Iterator[None]:
    """Raises OSError for a full disk, too, as safetensors and tokenizers meet it.

    The writer of safetensors has one type for all errors, and that of tokenizers raises a plain Exception.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, SafetensorError) or (type(error) is Exception and "(os error " in str(error)):
            raise OSError(str(error)) from error
        raise


def write_export(folder: Path, tensors: Mapping[str, Tensor], *, like: Path, dtype: str) -> dict[str, str]:
    """Writes the weights, with config and tokenizer of the model folder `like`. `dtype` is that of the weights.

    Returns file name -> digest of the file that holds the weights, which is too large to be read again for it. A tied
    head is left out, as such a file has it. The generation config keeps its special tokens alone. Takes no part in
    collectives, so any thread may call it. Raises OSError, and can then be called again.
    """
    folder.mkdir(exist_ok=True)
    digest = write_safetensors(folder / MODEL, tensors)
    for pattern in TOKENIZER_FILES:
        for path in like.glob(pattern):
            shutil.copyfile(path, folder / path.name)
    if (like / GENERATION).exists():
        (folder / GENERATION).write_text(json.dumps(special_tokens(like), indent=2) + "\n", encoding="utf-8")
    architecture = json.loads((like / "config.json").read_text(encoding="utf-8"))
    architecture.pop("torch_dtype", None)
    architecture["dtype"] = dtype
    sync_tree(folder)
    write_whole(folder / "config.json", json.dumps(architecture, indent=2) + "\n")  # last: marks it as complete
    open_as_folder(folder)
    return {MODEL: digest}


def write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Writes CPU tensors as safetensors.torch.save_file does, to the byte if all have one dtype. Returns the digest of
    the file. Raises OSError."""
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header, end = dict[str, object](__metadata__={"format": "pt"}), 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data begins at a multiple of 8
    with HashedFile(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in ordered:
            file.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return file.digest


def special_tokens(folder: Path) -> dict[str, Any]:
    """Returns the ids of special tokens in a folder's generation config, empty without one. Raises Damaged.

    Its other values, such as penalties, change how a server samples, and training samples without them.
    """
    path = folder / GENERATION
    given = read_json(path, dict[str, Any]) if path.exists() else {}
    return {name: value for name, value in given.items() if name.endswith("_token_id")}
