"""The learner's state as safetensors: each rank writes what it holds, and any number of ranks reads it.

Nothing here is unpickled. PyTorch's own format of distributed checkpoints pickles its metadata, so whoever can write
into a shared run's folder could run code as whoever resumes that run. Tensors alone are written therefore; what else an
optimizer has (its rates, its betas) comes from the config.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from services.errors import LearnerFault


def save_state(state: dict[str, Any], folder: Path) -> None:
    """Writes the tensors of a nested state into a folder that all ranks see. A collective."""
    save(_tensors(state), storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))


def load_state(state: dict[str, Any], folder: Path) -> None:
    """Overwrites the tensors of `state` by those that save_state wrote, under any number of ranks. A collective.

    Raises LearnerFault where the folder lacks a tensor or has it in another shape.
    """
    try:
        load(_tensors(state), storage_reader=HuggingFaceStorageReader(str(folder)))
    except (CheckpointException, Exception) as error:  # the first is a BaseException
        first = next((str(line) for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise LearnerFault(f"the checkpoint in {folder} does not fit this run: {first}") from error


def _tensors(state: dict[str, Any]) -> dict[str, Any]:
    """The same tree without leaves that are no tensors."""
    kept = {key: _tensors(value) if isinstance(value, dict) else value for key, value in state.items()}
    return {key: value for key, value in kept.items() if isinstance(value, dict | Tensor)}
