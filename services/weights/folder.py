"""Packs the weights of a Hugging Face folder for publishing, always in the same way, so that its digest is stable."""

from __future__ import annotations

from pathlib import Path

from services.weights.pack import Packed, pack_tensors


def pack_folder(folder: Path, dtype: str) -> Packed:
    """Loads the model of `folder`, in `dtype` (a torch dtype by name, `model.dtype` of the config), and packs it.

    Tied tensors are packed under both names, as the learner sends them. For a folder without a model it raises the
    errors of transformers.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # it would overwrite the run's own progress view
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), trust_remote_code=False)
    return pack_tensors(model.state_dict().items())
