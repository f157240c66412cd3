"""Low-rank adapters: the section `learner.lora`."""

from __future__ import annotations

from pydantic import Field

from services.config.env import Section


class LoraSection(Section):
    """Trains adapters of low rank beside frozen weights (LoRA). Checkpoints hold the adapters; samplers and exports
    get merged weights. The model without its adapters is the reference, so the KL term takes no memory."""

    rank: int = Field(default=0, ge=0)
    """Rank of the adapters; 0: all weights are trained."""
    alpha: float = Field(default=32.0, gt=0)
    """The adapter's output is multiplied by alpha / rank."""
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    """Names of the linear layers that get an adapter, wherever they are in the model."""
