"""The policy: a Hugging Face causal LM that reads packs and answers with logprobs of response tokens only.

Legend as in packing.py; D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AutoModelForCausalLM, PreTrainedModel

from learner.packing import Pack
from services.errors import UserError

ATTENTION = "gagpo_packed"
LOGITS_AT_ONCE = 1 << 26
"""Elements of [T, V] logits held at a time (256 MB in float32); beyond it, slices are recomputed in the backward."""


def packed_attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
                     *, pack: Pack, scaling: float | None = None, sliding_window: int | None = None,
                     **_: Any) -> tuple[Tensor, None]:
    """Causal attention inside each row. query [1, H, S, d], key and value [1, H_kv, S, d]; returns [1, S, H, d].

    Padding is right of each row, where a causal query never looks, so no mask is needed.
    """
    assert attention_mask is None, f"{type(module).__name__} makes a mask of its own"
    n, longest = pack.rectangle.shape

    def rows(x: Tensor) -> Tensor:  # [1, h, S, d] -> [n, h, L, d]; index_select, whose backward is a plain index_add
        flat = x[0].transpose(0, 1).flatten(1).index_select(0, pack.rectangle.flatten())
        return flat.view(n, longest, x.shape[1], x.shape[3]).transpose(1, 2)

    mask = None
    if sliding_window is not None and longest > sliding_window:
        i = torch.arange(longest, device=query.device)
        mask = (i[:, None] >= i) & (i[:, None] - i < sliding_window)
    out = nn.functional.scaled_dot_product_attention(
        rows(query), rows(key), rows(value), attn_mask=mask, is_causal=mask is None, scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1])
    out = out.transpose(1, 2).reshape(n * longest, -1).index_select(0, pack.cells)
    return out.view(1, len(pack.cells), query.shape[1], -1), None


AttentionInterface.register(ATTENTION, packed_attention)


class Policy(nn.Module):
    """pack -> (logprobs, entropies), float32 [T] each, of the tempered distribution that was sampled from."""

    def __init__(self, hf: PreTrainedModel) -> None:
        super().__init__()
        self.hf = hf

    @property
    def body(self) -> nn.Module:
        """All but the head: pack -> hidden states."""
        return self.hf.base_model

    def tied_names(self) -> set[str]:
        """Entries of the state dict that repeat the embeddings: a file holds these once."""
        if not self.hf.config.get_text_config().tie_word_embeddings:
            return set()
        head = self.hf.get_output_embeddings()
        return {f"{name}.weight" for name, module in self.hf.named_modules() if module is head}

    def forward(self, pack: Pack) -> tuple[Tensor, Tensor]:
        hidden = predicting_states(self.body, pack)
        head = cast(nn.Linear, self.hf.get_output_embeddings())
        step = max(1, LOGITS_AT_ONCE // head.out_features)
        if len(hidden) <= step:
            return _token_statistics(head, hidden, pack.targets, pack.temperatures)
        parts = [checkpoint(_token_statistics, head, *slices, use_reentrant=False) for slices in
                 zip(hidden.split(step), pack.targets.split(step), pack.temperatures.split(step), strict=True)]
        logp, entropy = zip(*cast(list[tuple[Tensor, Tensor]], parts), strict=True)
        return torch.cat(logp), torch.cat(entropy)


def predicting_states(body: nn.Module, pack: Pack) -> Tensor:
    """[T, D] last hidden states at the positions that predict the response tokens."""
    output = body(input_ids=pack.tokens, position_ids=pack.positions, use_cache=False, pack=pack)
    return output.last_hidden_state[0].index_select(0, pack.predicting)


def _token_statistics(head: nn.Linear, hidden: Tensor, targets: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor]:
    """Logprob of each target and entropy of its distribution, in nats. hidden [T, D], the others [T]."""
    logp = torch.log_softmax(head(hidden).float() / temperatures[:, None], dim=-1)  # [T, V]
    return -nn.functional.nll_loss(logp, targets, reduction="none"), -(logp.exp() * logp).sum(-1)


def load_policy(folder: Path, device: torch.device | str = "cpu") -> Policy:
    """Any local causal LM, weights in float32. Raises UserError where the folder holds none."""
    try:
        hf = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation=ATTENTION, local_files_only=True,
            trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{folder} holds no causal language model ({str(error).splitlines()[0]})",
                        "set model.path to a folder with config.json and model.safetensors") from error
    return Policy(hf).eval().to(device)  # dropout would make the recomputed logprobs differ


def shard(model: nn.Module, body: nn.Module, mesh: DeviceMesh, *, half: bool) -> None:
    """FSDP2 in place, the body layer by layer. `half`: computes in bfloat16; master weights and reductions stay
    float32."""
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if half else None, reduce_dtype=torch.float32)
    for layer in getattr(body, "layers", ()):
        fully_shard(layer, mesh=mesh, mp_policy=precision)
    fully_shard(model, mesh=mesh, mp_policy=precision)


def frozen_reference(folder: Path, mesh: DeviceMesh, device: torch.device | str, *, half: bool) -> Policy:
    """The initial policy of the KL term: sharded as the trained one is, without gradients."""
    policy = load_policy(folder, device).requires_grad_(False)
    shard(policy, policy.body, mesh, half=half)
    return policy


def full_tensors(policy: Policy) -> Iterator[tuple[str, Tensor]]:
    """Hugging Face name and whole CPU tensor, one at a time, tied entries included. A collective: all ranks iterate."""
    for name, value in policy.hf.state_dict().items():
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        yield name, whole.detach().cpu()
