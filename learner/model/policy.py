"""The policy: a Hugging Face causal LM that reads packs and returns logprobs of response tokens only.

Legend as in learner/rows/packing.py; D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from learner.model.attention import ATTENTION, OWN_ATTENTION
from learner.model.family import carries_state, check_family, logits_function
from learner.model.loading import Weights, empty_model
from learner.model.lora import without_adapters
from learner.model.memory import LOGITS_AT_ONCE, Layout, Shape, shape_of
from learner.model.sharding import shard, uncompiled
from learner.rows.packing import Pack


class Policy(nn.Module):
    """Maps a pack to (logprobs, entropies), float32 [T] each, of the tempered distribution that was sampled from."""

    def __init__(self, hf: PreTrainedModel) -> None:
        super().__init__()
        self.hf = hf
        self._logits = logits_function(hf)

    @property
    def body(self) -> nn.Module:
        """The model without its head: it maps a pack to hidden states."""
        return self.hf.base_model

    def tied_names(self) -> set[str]:
        """Names in the state dict that repeat the embeddings. Files contain these weights once."""
        if not self.hf.config.get_text_config().tie_word_embeddings:
            return set()
        head = self.hf.get_output_embeddings()
        return {f"{name}.weight" for name, module in self.hf.named_modules() if module is head}

    def forward(self, pack: Pack, *, own: bool = False) -> tuple[Tensor, Tensor]:
        """Returns logprobs and entropies.

        With `own` the model's own code computes a pack of one row, and the second result is the spread of the tempered
        logits. That is slow and keeps all logits, so it is only for comparisons.
        """
        if own:
            return self._by_own_code(pack)
        hidden = predicting_states(self.body, pack)
        step = max(1, LOGITS_AT_ONCE // cast(nn.Linear, self.hf.get_output_embeddings()).out_features)
        if len(hidden) <= step:
            return _token_statistics(self._logits, hidden, pack.targets, pack.temperatures)
        parts = [checkpoint(_token_statistics, self._logits, *slices, use_reentrant=False) for slices in
                 zip(hidden.split(step), pack.targets.split(step), pack.temperatures.split(step), strict=True)]
        logp, entropy = zip(*cast(list[tuple[Tensor, Tensor]], parts), strict=True)
        return torch.cat(logp), torch.cat(entropy)

    def _by_own_code(self, pack: Pack) -> tuple[Tensor, Tensor]:
        ours = self.hf.config._attn_implementation
        self.hf.set_attn_implementation(OWN_ATTENTION)
        try:
            with uncompiled(self.hf):  # the probe compares them with compiled layers
                logits = self.hf(input_ids=pack.tokens, use_cache=False).logits[0].index_select(0, pack.predicting)
        finally:
            self.hf.set_attn_implementation(cast(str, ours))
        logits = logits.float() / pack.temperatures[:, None]  # [T, V]
        logp = torch.log_softmax(logits, dim=-1)
        return -nn.functional.nll_loss(logp, pack.targets, reduction="none"), logits.std(-1)


def predicting_states(body: nn.Module, pack: Pack) -> Tensor:
    """Returns the last hidden states at the positions that predict the response tokens, [T, D]."""
    if cast(PreTrainedModel, body).config._attn_implementation == ATTENTION:
        output = body(input_ids=pack.tokens, position_ids=pack.positions, use_cache=False, pack=pack)
        return output.last_hidden_state[0].index_select(0, pack.predicting)
    assert pack.grid is not None, "sequences side by side need packs with a grid"
    grid = pack.grid.positions  # [m, L]
    tokens = pack.tokens[0].index_select(0, grid.flatten()).view(grid.shape)
    hidden = body(input_ids=tokens, use_cache=False).last_hidden_state.flatten(0, 1)
    return hidden.index_select(0, pack.grid.cells.index_select(0, pack.predicting))


def _token_statistics(logits: Callable[[Tensor], Tensor], hidden: Tensor, targets: Tensor,
                      temperatures: Tensor) -> tuple[Tensor, Tensor]:
    """Returns each target's logprob and the entropy of its distribution, in nats. hidden [T, D], the others [T]."""
    logp = torch.log_softmax(logits(hidden).float() / temperatures[:, None], dim=-1)  # [T, V]
    return -nn.functional.nll_loss(logp, targets, reduction="none"), -(logp.exp() * logp).sum(-1)


def empty_policy(folder: Path) -> tuple[Policy, Weights]:
    """Returns a local causal LM without its weights, and the weights.

    Raises UserError if the folder holds no causal LM, or a model of a family that is refused.
    """
    hf, weights = empty_model(folder, ATTENTION)
    check_family(folder)
    if carries_state(hf):
        hf.set_attn_implementation(OWN_ATTENTION)
    return Policy(hf).eval(), weights  # dropout would make the recomputed logprobs differ


def load_policy(folder: Path, device: torch.device | str = "cpu") -> Policy:
    """Returns a local causal LM with float32 weights, not sharded. Raises the same UserError as empty_policy."""
    policy, weights = empty_policy(folder)
    weights.fill(policy, device, torch.float32)
    return policy.to(device)


def frozen_reference(folder: Path, mesh: DeviceMesh, *, layout: Layout, half: bool) -> Policy:
    """Returns a frozen model: the initial policy for the KL term, or a teacher. It is sharded over `mesh`.

    Its weights have the compute format, because float32 weights would be rounded to it at every use.
    """
    policy, weights = empty_policy(folder)
    policy.requires_grad_(False)
    compiled = layout.compiled and not carries_state(policy.hf)  # a teacher may be of another family
    shard(policy, policy.body, weights, mesh, layout=replace(layout, checkpointing=False, compiled=compiled), half=half,
          frozen=torch.bfloat16 if half else None)
    return policy


def initial_policy(policy: Policy) -> Callable[[Pack], tuple[Tensor, Tensor]]:
    """Returns the policy without its adapters, a reference for the KL term that needs no weights of its own."""
    def forward(pack: Pack) -> tuple[Tensor, Tensor]:
        with without_adapters(policy):
            return policy(pack)

    return forward


def shape_in(policy: Policy) -> Shape:
    """Returns the shape of a policy, empty or not."""
    return shape_of(policy.hf.config.get_text_config().to_dict(), sum(p.numel() for p in policy.parameters()))


def full_tensor(tensor: Tensor) -> Tensor:
    """Returns the full tensor, gathered from all ranks if it is sharded. Then this is a collective."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
