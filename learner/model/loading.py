"""Loads models without a second copy of their weights.

A model is built with empty parameters (torch's meta device). Its weights are then read from the safetensors files into
one module at a time, so that each layer can be sharded before the next is read: beyond its own shard, a rank holds one
layer at a time.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PretrainedConfig, PreTrainedModel

from learner.model.family import caps_scores
from services.errors import UserError, first_line
from services.weights.headers import weight_files

_NO_MODEL = (None, errno.ENOENT, errno.ENOTDIR)
"""Numbers of the OSErrors that a folder without a model raises: those of transformers have none."""
Read = Callable[[str], Tensor]
"""Reads the tensor of a name from the files, on the CPU and in the files' number format."""


class Weights:
    """Fills the parameters of one empty model, and its buffers that files hold, with the weights of one folder."""

    def __init__(self, hf: PreTrainedModel, read: Read) -> None:
        self._empty = dict(filed(hf))  # a reference, so that no other object gets one of their ids
        self._names = {id(tensor): name for name, tensor in self._empty.items()}
        self._read = read

    def fill(self, module: nn.Module, device: torch.device | str, dtype: torch.dtype) -> None:
        """Gives every empty parameter and filed buffer below `module` its weights. Tied parameters stay tied."""
        filled: dict[int, nn.Parameter] = {}
        for owner in module.modules():
            for name, empty in list(owner.named_parameters(recurse=False, remove_duplicate=False)):
                if id(empty) not in self._names:
                    continue
                if id(empty) not in filled:
                    value = self._read(self._names[id(empty)]).to(device=device, dtype=dtype, copy=True)
                    filled[id(empty)] = nn.Parameter(value, requires_grad=empty.requires_grad)
                setattr(owner, name, filled[id(empty)])
            for buffer in owner.buffers(recurse=False):
                if id(buffer) in self._names:
                    buffer.copy_(self._read(self._names[id(buffer)]))


def filed(hf: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yields name and tensor of what files hold: parameters, tied ones once, and persistent buffers.

    Gemma 4 scales each layer's output by such a buffer.
    """
    names = hf.state_dict().keys()
    yield from hf.named_parameters()
    yield from ((name, buffer) for name, buffer in hf.named_buffers() if name in names)


def empty_model(folder: Path, attention: str) -> tuple[PreTrainedModel, Weights]:
    """Returns the causal LM of a local folder without its weights, and the weights to fill it with.

    Raises UserError if the folder holds no causal LM, or its files are damaged. Raises OSError if the disk fails (EIO,
    ESTALE).
    """
    try:
        for file in (folder / "config.json", *weight_files(folder)):
            file.open("rb").close()  # transformers and safetensors call each failure to open a file "no such file"
        hf = skeleton(AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False), attention)
        return hf, Weights(hf, _reader(folder, dict(filed(hf)).keys()))
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        if (isinstance(error, OSError) and error.errno not in _NO_MODEL) or "(os error " in str(error):
            raise
        raise UserError(f"{folder} holds no causal language model ({first_line(error)})",
                        "set model.path to a folder with config.json and model.safetensors") from error


def plain_model(folder: Path, dtype: str) -> PreTrainedModel:
    """Returns the causal LM of a local folder with its weights and with attention that has all features of its family.

    Its generation config keeps only special tokens: runs neither truncate nor penalise, and transformers refuses to
    save some configs that it loads. Raises the errors of transformers.
    """
    hf = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True, trust_remote_code=False)
    if caps_scores(hf):
        hf.set_attn_implementation("eager")
    tokens = ("bos_token_id", "eos_token_id", "pad_token_id")
    hf.generation_config = GenerationConfig(**{name: getattr(hf.generation_config, name) for name in tokens})
    return hf


def skeleton(config: PretrainedConfig, attention: str | None = None) -> PreTrainedModel:
    """Returns the causal LM of a config with empty parameters. Raises ValueError if there is none."""
    with _empty_parameters():
        return AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation=attention, trust_remote_code=False)


@contextmanager
def _empty_parameters() -> Iterator[None]:
    """Makes parameters without storage in its block. Buffers get storage: no file holds rotary frequencies."""
    register = nn.Module.register_parameter

    def register_empty(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and not param.is_meta:
            param = nn.Parameter(param.to("meta"), requires_grad=param.requires_grad)
        register(self, name, param)

    nn.Module.register_parameter = register_empty
    try:
        yield
    finally:
        nn.Module.register_parameter = register


def _reader(folder: Path, names: Set[str]) -> Read:
    """Returns a function that reads tensors from the files of the folder.

    If the files name the weights differently than the model, as those of older architectures do, transformers loads the
    entire model once, in the files' number format.
    """
    places: dict[str, Any] = {}
    for file in weight_files(folder):
        opened = safe_open(file, framework="pt")
        places |= dict.fromkeys(opened.keys(), opened)
    if names <= places.keys():
        return lambda name: places[name].get_tensor(name)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", local_files_only=True, trust_remote_code=False)
    tensors = dict(filed(model))
    return lambda name: tensors[name].detach()
