"""Tiny random models of published families, made from their configs in transformers: nothing is downloaded.

Each keeps the special features of its family (caps, sinks, windows, scales, states), turned up so far that leaving one
out changes every logprob.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VOCABULARY = 384
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 1024, "bos_token_id": 0,
    "eos_token_id": 1, "pad_token_id": 2}
"""Heads of 32, the smallest that vLLM serves on a CPU."""
GAIN = 8.0
"""Weights of matrices are this many times as large as a fresh model's: distributions far from uniform."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One family: its name in docs, its config class in transformers, and what it has beside the common sizes."""

    name: str
    config: str
    settings: dict[str, Any]
    features: str
    """The features that a learner or a sampler may get wrong."""


WINDOW = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"] * 2}
GEMMA = {"head_dim": 32, "query_pre_attn_scalar": 32, "tie_word_embeddings": True, **WINDOW}
FAMILIES = (
    Family(name="Qwen2, Qwen2.5", config="Qwen2Config", settings={"tie_word_embeddings": True},
           features="biases, tied embeddings"),
    Family(name="Qwen3", config="Qwen3Config", settings={"head_dim": 32}, features="norms of queries and keys"),
    Family(name="Qwen3.5", config="Qwen3_5TextConfig", settings={
        "head_dim": 32, "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 32,
        "linear_value_head_dim": 32, "layer_types": ["linear_attention", "full_attention"] * 2,
    }, features="linear attention, gated attention"),
    Family(name="Llama 3", config="LlamaConfig", settings={
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
                            "high_freq_factor": 4.0, "original_max_position_embeddings": 128}},
           features="scaled rotary embeddings"),
    Family(name="Gemma 2", config="Gemma2Config", settings={
        **GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 4.0},
           features="capped scores, capped logits, windows"),
    Family(name="Gemma 3", config="Gemma3TextConfig", settings={
        **GEMMA, "sliding_window": 9}, features="windows, norms of queries and keys"),
    Family(name="Gemma 4", config="Gemma4TextConfig", settings={
        **WINDOW, "head_dim": 32, "global_head_dim": 32, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0,
        "tie_word_embeddings": True}, features="windows, a scale of each layer, norms of queries and keys"),
    Family(name="Mistral", config="MistralConfig", settings={"head_dim": 32, "sliding_window": 8}, features="windows"),
    Family(name="Phi 2", config="PhiConfig", settings={"num_key_value_heads": 2, "partial_rotary_factor": 0.5},
           features="partial rotary embeddings, a head with a bias"),
    Family(name="Phi 3, Phi 4", config="Phi3Config", settings={}, features="fused projections"),
    Family(name="Granite", config="GraniteConfig", settings={
        "logits_scaling": 4.0, "embedding_multiplier": 3.0, "residual_multiplier": 0.7, "attention_multiplier": 0.2},
           features="scaled embeddings, residuals, scores and logits"),
    Family(name="Cohere", config="CohereConfig", settings={"logit_scale": 0.25, "use_qk_norm": False},
           features="scaled logits"),
    Family(name="OLMo 2", config="Olmo2Config", settings={}, features="norms after the layers"),
    Family(name="OLMo 3", config="Olmo3Config", settings=WINDOW, features="windows, norms after the layers"),
    Family(name="GPT-OSS", config="GptOssConfig", settings={
        **WINDOW, "head_dim": 32, "num_local_experts": 4, "num_experts_per_tok": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
           features="attention sinks, mixture of experts"),
    Family(name="Qwen3 MoE", config="Qwen3MoeConfig", settings={
        "head_dim": 32, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
           features="mixture of experts"),
)


def make_family(family: Family, folder: Path, *, seed: int = 0, change: Callable[[Any], object] | None = None) -> Path:
    """Writes a random model of the family into `folder` and returns it. `change` may alter the config before."""
    import torch
    import transformers

    torch.manual_seed(seed)
    config = getattr(transformers, family.config)(**SIZES | family.settings)
    if change is not None:
        change(config)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("sinks"):
                parameter.normal_(2.0)
            elif parameter.dim() >= 2 and "conv1d" not in name:
                parameter.mul_(GAIN)
            elif name.endswith("bias"):
                parameter.normal_()
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.uniform_(0.25, 0.75)
    model.save_pretrained(folder)
    return folder
