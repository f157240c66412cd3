"""A small Qwen2-architecture policy with fresh weights, so that the default run needs no download."""

from __future__ import annotations

from typing import TYPE_CHECKING

from learner.cold_start.tokenizer import END
from services.config.tree import ModelSection
from services.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256)
"""Sizes of an attention head that the CPU sampler has kernels for."""


def scratch_model(
    section: ModelSection, tokenizer: PreTrainedTokenizerFast, *, max_positions: int, seed: int
) -> Qwen2ForCausalLM:
    """Returns a model with float32 weights drawn from `seed`. The tokenizer gives vocabulary, end and padding token.

    Raises UserError if hidden / heads is not a head size that the sampler serves.
    """
    import torch
    from transformers import Qwen2ForCausalLM

    if section.hidden % section.heads or section.hidden // section.heads not in HEAD_SIZES:
        raise UserError(
            f"model.hidden={section.hidden} and model.heads={section.heads} make heads that the sampler cannot serve",
            f"choose them so that hidden / heads is one of {', '.join(map(str, HEAD_SIZES))}")
    end = tokenizer.get_vocab()[END]
    config = scratch_config(section, vocabulary=len(tokenizer), max_positions=max_positions, end=end)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config)


def scratch_config(section: ModelSection, *, vocabulary: int, max_positions: int, end: int) -> Qwen2Config:
    """Returns the config of such a model. `end`: id of the token that ends an answer."""
    from transformers import Qwen2Config

    return Qwen2Config(
        vocab_size=vocabulary, hidden_size=section.hidden, intermediate_size=section.intermediate,
        num_hidden_layers=section.layers, num_attention_heads=section.heads, num_key_value_heads=section.heads,
        max_position_embeddings=max_positions, tie_word_embeddings=section.tie_embeddings,
        bos_token_id=None, eos_token_id=end, pad_token_id=end,
        use_cache=True, dtype="float32")
