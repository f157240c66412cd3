"""Checks the layers that adapters are asked for, before a cold start that would be lost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from deploy.launch.planning.model_memory import SCRATCH_VOCABULARY
from services.config.tree import Config, ModelSection
from services.errors import UserError

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def check_adapters(config: Config) -> None:
    """Raises UserError if `learner.lora` names a layer that the model lacks, or one that cannot have an adapter."""
    if not config.learner.lora.rank:
        return
    from learner.model.loading import skeleton  # imports torch, for seconds
    from learner.model.lora import adapted

    try:
        model = skeleton(_described(config.model))
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{config.model.path} holds no causal language model ({str(error).splitlines()[0]})",
                        "set model.path to a folder with config.json and model.safetensors") from error
    adapted(model, config.learner.lora)


def _described(model: ModelSection) -> PretrainedConfig:
    from transformers import AutoConfig

    from learner.cold_start.scratch_model import scratch_config

    if model.path is None:
        return scratch_config(model, vocabulary=SCRATCH_VOCABULARY, max_positions=1, end=0)
    return AutoConfig.from_pretrained(Path(model.path), local_files_only=True, trust_remote_code=False)
