"""Causal attention inside the sequences of a pack, registered with transformers under the name ATTENTION.

Two kernels compute the same function. Flash attention for sequences of any length (torch's `varlen_attn`) needs CUDA
and 16-bit numbers, and has no padding. In all other cases the sequences are laid out as a rectangle [m, L] for
scaled_dot_product_attention. A pack has a grid only if it needs the rectangle. Neither kernel supports capped scores
and attention sinks, so these are computed in plain steps on the rectangle, with all scores in memory.

Legend as in learner/rows/packing.py; H query heads, H_kv key heads, d head size.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface

from learner.model.family import FLASH_HEAD
from learner.rows.packing import Pack, Rectangle
from services.errors import UserError

ATTENTION = "gagpo_packed"
OWN_ATTENTION = "eager"
"""The model's own attention, with all features of its family. torch's kernels silently ignore caps and sinks."""
HARMLESS = frozenset({"dropout", "is_causal", "position_ids", "use_cache", "output_attentions", "cache_position"})
"""Arguments of attention that change nothing here: no cache is kept, and dropout is off."""
_GROUPED = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}
"""Argument for fewer key heads than query heads. torch before 2.12 has no such argument and needs none."""


def takes_varlen(device: torch.device, *, half: bool) -> bool:
    """Whether attention on this device accepts sequences one after another. If not, packs need a grid."""
    return device.type == "cuda" and half


def packed_attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor,  # noqa: PLR0913 - transformers'
                     attention_mask: Tensor | None, *, pack: Pack, scaling: float | None = None,
                     sliding_window: int | None = None, softcap: float | None = None, s_aux: Tensor | None = None,
                     **others: Any) -> tuple[Tensor, None]:
    """Computes the attention of one layer. query [1, H, S, d], key and value [1, H_kv, S, d]; returns [1, S, H, d].

    `softcap` bounds the scores, and `s_aux` [H] holds attention sinks. Raises UserError if the model's family needs any
    other feature.
    """
    assert attention_mask is None, f"{type(module).__name__} makes its own mask"
    if unknown := {name for name, value in others.items() if value is not None} - HARMLESS:
        raise UserError(f"the attention of {type(module).__name__} asks for {', '.join(sorted(unknown))}, which packed "
                        "rows do not have", "choose a model of a family that docs/models.md lists")
    extras = Extras(softcap, s_aux)
    if pack.grid is None:
        assert extras == PLAIN, "capped scores and sinks need packs with a grid"
        return attend_varlen(query, key, value, pack, scaling=scaling, window=sliding_window), None
    return attend_grid(query, key, value, pack.grid, scaling=scaling, window=sliding_window, extras=extras), None


def attend_varlen(query: Tensor, key: Tensor, value: Tensor, pack: Pack, *, scaling: float | None,
                  window: int | None, kernel: Callable[..., Any] = varlen_attn) -> Tensor:
    """Attends within sequences that lie one after another. `window`: tokens that a query sees, its own included."""
    flat = [x[0].transpose(0, 1) for x in (query, key, value)]  # [S, h, d]
    left = -1 if window is None else window - 1
    out = kernel(*flat, pack.starts, pack.starts, pack.longest, pack.longest, scale=scaling, window_size=(left, 0),
                 **_GROUPED)
    return out[None]


class Extras(NamedTuple):
    """Features of some families: scores become cap * tanh(score / cap), and each head [H] has a sink."""

    softcap: float | None
    sinks: Tensor | None


PLAIN = Extras(None, None)


def attend_grid(query: Tensor, key: Tensor, value: Tensor, grid: Rectangle, *, scaling: float | None,
                window: int | None, extras: Extras = PLAIN) -> Tensor:
    """Attends within sequences laid out as a rectangle. Padding at the end needs no mask: causal queries look left."""
    m, longest = grid.positions.shape

    def cells(x: Tensor) -> Tensor:  # [1, h, S, d] -> [m, h, L, d]; index_select, whose backward is a plain index_add
        flat = x[0].transpose(0, 1).flatten(1).index_select(0, grid.positions.flatten())
        return flat.view(m, longest, x.shape[1], x.shape[3]).transpose(1, 2)

    mask = None
    if (window is not None and longest > window) or extras != PLAIN:
        i = torch.arange(longest, device=query.device)
        mask = (i[:, None] >= i) & (i[:, None] - i < (window or longest))
    if mask is not None and extras != PLAIN:
        scale = query.shape[3] ** -0.5 if scaling is None else scaling
        out = _attend_in_steps(cells(query) * scale, cells(key), cells(value), mask, extras)
    else:
        grouped = query.shape[1] != key.shape[1] and _takes_groups(query, mask)
        keys, values = (x if grouped else _repeated(x, query.shape[1]) for x in (cells(key), cells(value)))
        out = nn.functional.scaled_dot_product_attention(
            cells(query), keys, values, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=grouped)
    out = out.transpose(1, 2).reshape(m * longest, -1).index_select(0, grid.cells)
    return out.view(1, len(grid.cells), query.shape[1], -1)


def _takes_groups(query: Tensor, mask: Tensor | None) -> bool:
    """Whether a fast kernel takes fewer key heads than query heads. On CUDA this is flash attention alone: otherwise
    torch holds all scores [m, H, L, L] (its notes on `enable_gqa`, and `use_gqa_in_sdpa` of transformers)."""
    return not query.is_cuda or (mask is None and query.element_size() == 2 and query.shape[3] <= FLASH_HEAD)


def _repeated(x: Tensor, heads: int) -> Tensor:
    """x [m, H_kv, L, d] -> [m, H, L, d]."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def _attend_in_steps(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, extras: Extras) -> Tensor:
    """query [m, H, L, d], scaled; key and value [m, H_kv, L, d]; mask bool [L, L]. Returns [m, H, L, d]."""
    key, value = (_repeated(x, query.shape[1]) for x in (key, value))
    scores = query @ key.transpose(2, 3)  # [m, H, L, L]
    if extras.softcap is not None:
        scores = extras.softcap * torch.tanh(scores / extras.softcap)
    scores = scores.float().masked_fill(~mask, -torch.inf)
    if extras.sinks is not None:
        column = extras.sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, column], dim=-1)
    return torch.softmax(scores, dim=-1)[..., :key.shape[2]].to(value.dtype) @ value


AttentionInterface.register(ATTENTION, packed_attention)
