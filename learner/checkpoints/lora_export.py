"""The adapters of a checkpoint in the format of peft, which vLLM and transformers load beside the base model.

A merged export in bfloat16 rounds W + s B A: where B A is below half a last place of W, the sum is W again. The
adapters here are float32, as they were trained.
"""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save_file

from learner.checkpoints.export import disk_errors
from learner.checkpoints.state_files import read_tensors
from learner.model.lora import DOWN, UP, is_adapter
from services.config.lora import LoraSection

PREFIX = "base_model.model."
"""Stands before each of the base model's names, because peft wraps the model twice."""
ENDS = {DOWN: "lora_A.weight", UP: "lora_B.weight"}


def write_adapter(state: Path, out: Path, section: LoraSection, *, base: str) -> None:
    """Writes `adapter_model.safetensors` and `adapter_config.json` into `out`, a new folder.

    `state`: a checkpoint's folder, written by any number of ranks. `base`: the name by which others find the base
    model. Raises LearnerFault if the state cannot be read, OSError if `out` cannot be written.
    """
    found = read_tensors(state, lambda name: name.startswith("model.") and is_adapter(name))
    tensors, layers = {}, set[str]()
    for name, tensor in found.items():
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
