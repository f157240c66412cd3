"""Checks the model folder that `model.path` names, which may be incomplete or damaged, the layers that
`learner.lora` names, and the teacher of distillation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.launch.planning.model_memory import SCRATCH_VOCABULARY
from learner.model.family import check_family
from services.config.tree import Config, ModelSection
from services.errors import UserError, first_line
from services.files import read_json
from services.tokenizer import load_tokenizer
from services.weights.headers import INDEX, OF_MISTRAL, read_tokenizer, tensor_shapes, weight_files

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_PARTS = (
    (("config.json",), "config.json"), (("*.safetensors", "*.bin"), "weights"),
    (("tokenizer.json", "*.model", "vocab.*", "*.tiktoken"), "tokenizer"))
"""The parts of a complete folder. One of the patterns of each has to match; tokenizer_config.json alone holds no token,
and Mistral's tekken.json no chat template."""
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
"""The number of a layer in the name of a tensor."""


def check_model(path: Path) -> None:
    """Raises UserError for a folder without config.json, a tokenizer, or all files of its weights."""
    if (path / "config.yaml").is_file() and (path / "run.json").is_file():
        raise UserError(f"the model at {path} has no config.json: it is the folder of a run",
                        f"set model.path to a model in it, such as {path / 'model'}, or to what `gagpo export` wrote")
    for patterns, what in _PARTS:
        if not any(file for pattern in patterns for file in path.glob(pattern) if not file.match(OF_MISTRAL)):
            raise UserError(f"the model at {path} has no {what}", "set model.path to a complete Hugging Face folder")
    if not (path / INDEX).exists():
        return
    files = read_json(path / INDEX, dict[str, Any]).get("weight_map")
    if not isinstance(files, dict):
        raise UserError(f"{path / INDEX} is broken (weight_map is {files!r:.40})", "copy the model again")
    if missing := sorted({str(name) for name in files.values() if not (path / str(name)).is_file()}):
        raise UserError(f"the model at {path} lacks {len(missing)} of the files of its weights, such as {missing[0]}",
                        "finish its download, or copy the model again")


def described_sizes(path: Path) -> dict[str, int]:
    """Returns those of four sizes that config.json has, by name. Raises UserError if one of them is not a positive
    integer below 2^31, or if model_type is no text."""
    names = ("max_position_embeddings", "hidden_size", "num_hidden_layers", "vocab_size")
    described = read_json(path / "config.json", dict[str, Any])
    if not isinstance(kind := described.get("model_type"), str | None):
        raise UserError(f"{path / 'config.json'} is broken (model_type is {kind!r:.40})", "copy the model again")
    sizes = {name: size for name, size in described.items() if name in names}
    if wrong := [name for name, size in sizes.items() if not isinstance(size, int) or not 0 < size < 1 << 31]:
        raise UserError(f"{path / 'config.json'} is broken ({wrong[0]} is {sizes[wrong[0]]!r:.40})",
                        "copy the model again")
    return sizes


def check_weights(path: Path) -> None:
    """Raises UserError if the embeddings have another shape than config.json says, or the weights other layers, or if
    tokenizer.json cannot be read. Reads only the headers of the weights."""
    sizes, names = described_sizes(path), set[str]()
    for file in weight_files(path):
        shapes = tensor_shapes(file)
        names |= shapes.keys()
        for name, shape in shapes.items():
            wanted = (sizes.get("vocab_size", shape[0]), sizes.get("hidden_size", shape[-1])) if shape else ()
            if name.endswith("embed_tokens.weight") and shape != wanted:
                raise UserError(f"{file} has {name} of shape {shape}, and config.json says {wanted}",
                                "copy the model again")
    _check_layers(path, names, sizes)
    if (path / "tokenizer.json").exists():
        read_tokenizer(path / "tokenizer.json")


def _check_layers(path: Path, names: Iterable[str], sizes: Mapping[str, int]) -> None:
    """Raises UserError if the layers that the names of the weights give are not those of config.json.

    Layers for multi-token prediction may follow the last one. They are never loaded.
    """
    there = {int(match[1]) for name in names if "mtp" not in name and (match := _LAYER.search(name))}
    layers = sizes.get("num_hidden_layers")
    more = read_json(path / "config.json", dict[str, Any]).get("num_nextn_predict_layers") or 0
    if not isinstance(more, int):
        raise UserError(f"{path / 'config.json'} is broken (num_nextn_predict_layers is {more!r:.40})",
                        "copy the model again")
    if not there or layers is None or (len(there) in (layers, layers + more) and max(there) == len(there) - 1):
        return
    raise UserError(f"the model at {path} has weights of {len(there)} layers, up to number {max(there)}, and its "
                    f"config.json says num_hidden_layers={layers}", "copy the model again")


def check_adapters(config: Config) -> None:
    """Raises UserError if `learner.lora` names a layer that the model lacks, or one that cannot have an adapter."""
    if not config.learner.lora.rank:
        return
    from learner.model.loading import skeleton  # imports torch, for seconds
    from learner.model.lora import adapted

    try:
        model = skeleton(_model_config(config.model))
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{config.model.path} holds no causal language model ({first_line(error)})",
                        "set model.path to a folder with config.json and model.safetensors") from error
    adapted(model, config.learner.lora)


def _model_config(model: ModelSection) -> PretrainedConfig:
    from transformers import AutoConfig

    from learner.cold_start.scratch_model import scratch_config

    if model.path is None:
        return scratch_config(model, vocabulary=SCRATCH_VOCABULARY, max_positions=1, end=0)
    return AutoConfig.from_pretrained(Path(model.path), local_files_only=True, trust_remote_code=False)


_KEY = "learner.distill.teacher"


def check_teacher(config: Config) -> Iterator[UserError]:
    """Yields a UserError for a teacher that cannot score the tokens of this config's policy."""
    teacher, model = config.learner.distill.teacher, config.model.path
    if teacher is None:
        return
    if config.learner.loss.ratio != "token":
        yield UserError(f"{_KEY} gives each token its own advantage, and learner.loss.ratio="
                        f"{config.learner.loss.ratio} has one ratio per action", "set learner.loss.ratio=token")
    if model is None:
        yield UserError(f"{_KEY}={teacher} must have the policy's tokenizer, and the cold start of a model made from "
                        "scratch makes a new one",
                        "set model.path to a model with the teacher's tokenizer, such as an earlier run's cold start")
    if not teacher.is_dir():
        yield UserError(f"there is no model at {_KEY}={teacher}", "name a Hugging Face folder")
        return
    try:
        check_model(teacher)
        check_family(teacher)
        check_weights(teacher)
    except UserError as error:
        yield UserError(f"{_KEY}: {error.what}", "name a complete Hugging Face folder")
        return
    row = config.rollout.row_tokens
    longest = described_sizes(teacher).get("max_position_embeddings", row)
    if row > longest:
        yield UserError(f"prompt and response may take {row} tokens, and {_KEY}={teacher} has {longest} positions",
                        "lower rollout.max_prompt_tokens, or choose another teacher")
    if model is not None and model.is_dir():
        yield from _check_tokenizers(teacher, model)


def _check_tokenizers(teacher: Path, model: Path) -> Iterator[UserError]:
    """Yields a UserError if the tokenizers differ, or if the model may sample a token that the teacher does not score.
    """
    theirs, ours = map(_vocabulary, (teacher, model))
    odd = min((token for token in theirs.keys() | ours.keys() if theirs.get(token) != ours.get(token)),
              key=lambda token: (theirs.get(token, len(theirs)), token), default=None)
    if odd is not None:
        yield UserError(f"{_KEY}={teacher} has another tokenizer than model.path={model}: the token {odd!r:.40} is "
                        f"{_number(theirs.get(odd))} there and {_number(ours.get(odd))} here",
                        "choose a teacher of the same family")
        return
    scores, samples = (described_sizes(folder).get("vocab_size", 0) for folder in (teacher, model))
    if scores < samples:
        yield UserError(f"{_KEY}={teacher} scores {scores} tokens, and model.path={model} may sample {samples}",
                        "choose a teacher whose config.json has as large a vocab_size")


def _vocabulary(folder: Path) -> Mapping[str, int]:
    """Returns the number of each token. Raises UserError if the tokenizer cannot be read."""
    if (file := folder / "tokenizer.json").exists():
        return read_tokenizer(file).get_vocab()
    try:
        return load_tokenizer(folder).get_vocab()
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"the tokenizer of {folder} cannot be read ({first_line(error)})",
                        "copy the model again") from None


def _number(token: int | None) -> str:
    return "no token" if token is None else f"number {token}"
