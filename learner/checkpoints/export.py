"""Writes a model's folder for transformers and vLLM (weights, config, tokenizer), or its adapters in peft's format.

A merged export in bfloat16 rounds W + s B A: where s B A is less than half a unit in the last place of W, the sum is W.
Exported adapters are float32, as they were trained.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from learner.checkpoints.file_facts import HashedFile
from learner.checkpoints.state_files import read_tensors
from learner.model.lora import DOWN, UP, is_adapter
from services.config.sections import LoraSection
from services.files import open_as_folder, read_json, sync_tree, write_whole

TOKENIZER_FILES = ("tokenizer*", "special_tokens_map.json", "vocab.json", "merges.txt", "added_tokens.json",
                   "chat_template*")
GENERATION = "generation_config.json"
MODEL = "model.safetensors"
DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
"""dtype of weights -> its name in a safetensors header."""
PREFIX = "base_model.model."
"""Precedes each of the base model's names, because peft wraps the model twice."""
ENDS = {DOWN: "lora_A.weight", UP: "lora_B.weight"}
"""Name of an adapter's matrix here -> its name in peft's files."""


@contextmanager
def disk_errors() -> Iterator[None]:
    """Turns the errors of safetensors and tokenizers at a full disk into OSError.

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

    Returns file name -> digest of the file with the weights, which is too large to be read again. `tensors` has no tied
    head, as such files have none. The generation config keeps only its special tokens. Not a collective, so any thread
    may call it. Raises OSError, and can then be called again.
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
    """Writes CPU tensors as safetensors.torch.save_file does; equal bytes if all have one dtype.

    Returns the digest of the file. Raises OSError.
    """
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
    values = read_json(path, dict[str, Any]) if path.exists() else {}
    return {name: value for name, value in values.items() if name.endswith("_token_id")}


def write_adapter(state: Path, out: Path, section: LoraSection, *, base: str) -> None:
    """Writes `adapter_model.safetensors` and `adapter_config.json` into `out`, a new folder.

    `state`: a checkpoint's folder, written by any number of ranks. `base`: name or path of the base model.
    Raises LearnerFault if the state cannot be read, OSError if `out` cannot be written.
    """
    adapters = read_tensors(state, lambda name: name.startswith("model.") and is_adapter(name))
    tensors, layers = {}, set[str]()
    for name, tensor in adapters.items():
        layer, _, part = name.removeprefix("model.hf.").rpartition(".")
        tensors[f"{PREFIX}{layer}.{ENDS[part]}"] = tensor
        layers.add(layer.rpartition(".")[2])
    out.mkdir(parents=True)
    with disk_errors():
        save_file(tensors, out / "adapter_model.safetensors", metadata={"format": "pt"})
    alpha = int(section.alpha) if section.alpha.is_integer() else section.alpha
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "r": section.rank,
              "lora_alpha": alpha, "lora_dropout": 0.0, "target_modules": sorted(layers), "bias": "none",
              "use_rslora": False, "fan_in_fan_out": False, "inference_mode": True}
    (out / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
