"""The features of a model family that decide how the learner computes it, and the families that it refuses.

A pack is computed in one of two ways:

    packed      layers mix tokens by attention alone: sequences lie one after another, and attention keeps them apart
    rectangle   layers also carry a state (linear attention, convolutions): sequences lie side by side, and the model's
                own code computes each separately; padding is on the right, where no causal layer looks

probe.py compares packs with the model's own forward pass, which detects features that this file does not list.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.errors import UserError
from services.files import read_json

if TYPE_CHECKING:
    from torch import Tensor

ATTENTION_LAYERS = frozenset({"full_attention", "sliding_attention"})
"""Entries of `layer_types` whose layers mix tokens by attention alone."""
EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
UNPACKED_ROPE = frozenset({"dynamic", "longrope"})
"""Rotary embeddings whose angles depend on the longest sequence of a batch."""
FLASH_HEAD = 256
"""Largest head of torch's flash attention, and so of its kernel for sequences of any length."""
ADVICE = "choose a dense text model; docs/models.md lists the families that were tested"


def check_family(folder: Path) -> None:
    """Raises UserError that names the family if the model in `folder` would not be computed correctly."""
    config = read_json(folder / "config.json", dict[str, Any])
    family = config.get("model_type", "unknown")
    if reason := refusal(config):
        raise UserError(f"the model at {folder} is of the family {family}, which {reason}", ADVICE)


def refusal(config: dict[str, Any]) -> str | None:
    """Returns why a model with this config.json is refused, or None."""
    if any(isinstance(value, dict) for name, value in config.items() if name in ("vision_config", "audio_config")):
        return "reads images or sound besides text: only its text model can be trained"
    if config.get("is_encoder_decoder"):
        return "has an encoder: only decoders are trained"
    experts = max((config.get(key) or 0 for key in EXPERT_KEYS), default=0)
    if experts > 1:
        return f"is a mixture of {experts} experts: its weights cannot be sent to the sampler"
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = rope.get("rope_type", rope.get("type"))
    if kind in UNPACKED_ROPE:
        return f"has {kind} rotary embeddings: their angles depend on the longest row of a batch"
    return None


def carries_state(hf: Any) -> bool:
    """Whether a layer passes a state along the tokens, so that sequences one after another would affect each other."""
    layers = getattr(hf.config.get_text_config(), "layer_types", None) or ()
    return bool(getattr(hf, "_is_stateful", False)) or not ATTENTION_LAYERS.issuperset(layers)


def caps_scores(hf: Any) -> bool:
    """Whether attention caps its scores, as in Gemma 2. torch's kernels silently ignore such a cap."""
    return getattr(hf.config.get_text_config(), "attn_logit_softcapping", None) is not None


def needs_grid(hf: Any) -> bool:
    """Whether attention or a layer's state needs the sequences of a pack as a rectangle, whatever the device."""
    heads = (getattr(module, "head_dim", None) or 0 for module in hf.modules())
    return (caps_scores(hf) or carries_state(hf) or max(heads) > FLASH_HEAD
            or any(name.endswith("sinks") for name, _ in hf.named_parameters()))


def logits_function(hf: Any) -> Callable[[Tensor], Tensor]:
    """Returns hidden states [T, D] -> logits [T, V]: the head with the family's own scale and cap.

    Gemma 2 caps logits (arXiv 2408.00118, section 2), Granite divides and Cohere multiplies them by a number.
    """
    config, head = hf.config.get_text_config(), hf.get_output_embeddings()
    cap = getattr(config, "final_logit_softcapping", None)
    scale = (getattr(config, "logit_scale", None) or 1.0) / (getattr(config, "logits_scaling", None) or 1.0)

    def logits(hidden: Tensor) -> Tensor:
        out = head(hidden)
        if scale != 1.0:
            out = out * scale
        return out if cap is None else (out / cap).tanh() * cap

    return logits
