"""Checks the folder of a model that `model.path` names: a copy or a download may be incomplete."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from services.errors import UserError
from services.files import read_json
from services.weights.headers import read_tokenizer, tensor_shapes

_PARTS = (
    (("config.json",), "config.json"), (("*.safetensors", "*.bin"), "weights"),
    (("tokenizer.json", "*.model", "vocab.*", "*.tiktoken", "tekken.json"), "tokenizer"))
"""The parts of a whole folder. One of the patterns of each has to match; tokenizer_config.json alone holds no token."""
_INDEX = "model.safetensors.index.json"


def check_model(path: Path) -> None:
    """Raises UserError for a folder without config.json, a tokenizer, or all files of its weights."""
    for patterns, what in _PARTS:
        if not any(file for pattern in patterns for file in path.glob(pattern)):
            raise UserError(f"the model at {path} has no {what}", "set model.path to a complete Hugging Face folder")
    if not (path / _INDEX).exists():
        return
    files = read_json(path / _INDEX, dict[str, Any]).get("weight_map")
    if not isinstance(files, dict):
        raise UserError(f"{path / _INDEX} is broken (weight_map is {files!r:.40})", "copy the model again")
    if missing := sorted({str(name) for name in files.values() if not (path / str(name)).is_file()}):
        raise UserError(f"the model at {path} lacks {len(missing)} of the files of its weights, such as {missing[0]}",
                        "finish its download, or copy the model again")


def described_sizes(path: Path) -> dict[str, int]:
    """Returns the sizes in config.json by name. Raises UserError if one of them is not a positive integer."""
    names = ("max_position_embeddings", "hidden_size", "num_hidden_layers", "vocab_size")
    found = read_json(path / "config.json", dict[str, Any])
    if not isinstance(kind := found.get("model_type"), str | None):
        raise UserError(f"{path / 'config.json'} is broken (model_type is {kind!r:.40})", "copy the model again")
    sizes = {name: size for name, size in found.items() if name in names}
    if wrong := [name for name, size in sizes.items() if not isinstance(size, int) or not 0 < size < 1 << 31]:
        raise UserError(f"{path / 'config.json'} is broken ({wrong[0]} is {sizes[wrong[0]]!r:.40})",
                        "copy the model again")
    return sizes


def check_weights(path: Path) -> None:
    """Checks that the weights have the shapes that config.json names, and that the tokenizer can be read."""
    sizes = described_sizes(path)
    for file in path.glob("*.safetensors"):
        for name, shape in tensor_shapes(file).items():
            wanted = (sizes.get("vocab_size", shape[0]), sizes.get("hidden_size", shape[-1])) if shape else ()
            if name.endswith("embed_tokens.weight") and shape != wanted:
                raise UserError(f"{file} has {name} of shape {shape}, and config.json says {wanted}",
                                "copy the model again")
    if (path / "tokenizer.json").exists():
        read_tokenizer(path / "tokenizer.json")
