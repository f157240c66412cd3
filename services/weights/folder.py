"""Weights of a Hugging Face folder as they are published: one way, so that the same folder has the same digest."""

from __future__ import annotations

from pathlib import Path

from services.weights.pack import Packed, pack_tensors


def pack_folder(folder: Path, dtype: str) -> Packed:
    """Loads the model of `folder`, in `dtype` (a torch dtype by name, `model.dtype` of the config), and packs it.

    Tied tensors are in it under both names, as the learner sends them. Raises what transformers raises for a folder
    without a model.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # it would be drawn across the run's own progress
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), trust_remote_code=False)
    return pack_tensors(model.state_dict().items())
