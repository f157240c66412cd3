"""Rows packed without padding.

Legend: N rows of a batch, n rows of one pack, S tokens of a pack, T response tokens of a pack, L its longest row.
A row is one step of an episode: its prompt and its response. A pack is one forward pass: rows one after another in
one sequence of S tokens, so that embeddings, projections and MLPs see no padding. If attention has no kernel for rows
of any length (learner/attention.py), it alone lays the rows out as an [n, L] rectangle; rows are packed in order of
length, so the rectangle is nearly full. Against one block-diagonal mask of S x S that is three to eight times as fast
on CPU. Attention of a row never sees another row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from services.records import Step

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of a batch in training order; what every rank holds. Light to send: flat arrays."""

    tokens: npt.NDArray[np.int32]
    """Prompt and response of row 0, of row 1, ..."""
    prompt_lengths: Ints
    """[N]."""
    response_lengths: Ints
    """[N], each at least 1."""
    sampler_logprobs: npt.NDArray[np.float32]
    """All responses one after another."""
    advantages: Floats
    """[N]."""
    temperatures: Floats
    """[N]: the logprobs are of the distribution that was sampled from."""
    stale: npt.NDArray[np.bool_]
    """[N]: an older policy sampled some token of the row."""

    def __len__(self) -> int:
        return len(self.prompt_lengths)

    @property
    def lengths(self) -> Ints:
        """[N] prompt and response."""
        return self.prompt_lengths + self.response_lengths


def make_rows(steps: Sequence[Step], *, advantages: Sequence[float], temperatures: Sequence[float],
              stale: Sequence[bool]) -> Rows:
    """Rows of these steps, in their order. Raises ValueError for an empty prompt or response."""
    for step in steps:
        if not len(step.prompt_ids) or not len(step.response_ids):
            raise ValueError(f"a step has {len(step.prompt_ids)} prompt and {len(step.response_ids)} response tokens")
        if len(step.logprobs) != len(step.response_ids):
            raise ValueError(f"a step has {len(step.response_ids)} response tokens, {len(step.logprobs)} logprobs")
    return Rows(
        tokens=np.concatenate([part for step in steps for part in (step.prompt_ids, step.response_ids)]),
        prompt_lengths=np.array([len(step.prompt_ids) for step in steps]),
        response_lengths=np.array([len(step.response_ids) for step in steps]),
        sampler_logprobs=np.concatenate([step.logprobs for step in steps]),
        advantages=np.array(advantages, dtype=np.float64),
        temperatures=np.array(temperatures, dtype=np.float64),
        stale=np.array(stale, dtype=np.bool_),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rectangle:
    """Where the tokens of a pack lie in the rectangle of attention."""

    positions: Tensor
    """int64 [n, L]: the position in S of each cell; cells right of a row's end point at 0."""
    cells: Tensor
    """int64 [S]: the cell of each token in the flattened rectangle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """One forward pass."""

    tokens: Tensor
    """int64 [1, S]."""
    positions: Tensor
    """int64 [1, S]; starts at 0 in each row."""
    starts: Tensor
    """int32 [n + 1]: where in S each row starts, and S."""
    longest: int
    """L."""
    grid: Rectangle | None
    """None if attention takes the rows as they lie."""
    predicting: Tensor
    """int64 [T]: the positions in S whose logits predict the response tokens."""
    targets: Tensor
    """int64 [T]: the response tokens."""
    row: Tensor
    """int64 [T]: the row of each response token, 0 to n - 1."""
    temperatures: Tensor
    """float32 [T]."""
    sampler_logprobs: Tensor
    """float32 [T]."""
    advantages: Tensor
    """float32 [n]."""
    stale: Tensor
    """bool [n]."""
    weight: float = 1.0
    """0 for a filler, which keeps the ranks' collectives in step and adds nothing."""

    @property
    def num_rows(self) -> int:
        """n."""
        return len(self.advantages)


def split(lengths: Ints, ranks: int, token_budget: int, *, grid: bool = True) -> list[list[Ints]]:
    """Row indices [rank][pack]: the same on every rank, every rank with the same number of packs.

    Longest rows first, each to the rank with the fewest tokens so far; then each rank cuts its rows, in order of
    length, where n x L (without a grid: S) would exceed the budget. A rank with fewer packs than another gets empty
    ones.
    """
    order = np.argsort(-lengths, kind="stable")
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for index in order:
        rank = loads.index(min(loads))
        shares[rank].append(int(index))
        loads[rank] += int(lengths[index])
    packs = [_cut(np.array(share, dtype=np.int64), lengths, token_budget, grid=grid) for share in shares]
    most = max(map(len, packs))
    return [own + [np.empty(0, dtype=np.int64)] * (most - len(own)) for own in packs]


def _cut(share: Ints, lengths: Ints, token_budget: int, *, grid: bool) -> list[Ints]:
    """`share` is in descending order of length, so a pack's first row is its longest."""
    ends = np.concatenate([[0], np.cumsum(lengths[share])])
    packs: list[Ints] = []
    start = 0
    while start < len(share):
        rows = (token_budget // int(lengths[share[start]]) if grid else
                int(np.searchsorted(ends, ends[start] + token_budget, side="right")) - 1 - start)
        packs.append(share[start:start + max(1, rows)])
        start += max(1, rows)
    return packs


def pack_rows(rows: Rows, indices: Ints, device: torch.device | str = "cpu", *, grid: bool = True) -> Pack:
    """Returns the pack of these rows; for no rows, a filler of weight 0 made of the batch's shortest row."""
    filler = len(indices) == 0
    if filler:
        indices = np.array([int(np.argmin(rows.lengths))])
    prompts, responses, lengths = (x[indices] for x in (rows.prompt_lengths, rows.response_lengths, rows.lengths))
    all_ends, response_ends = np.cumsum(rows.lengths), np.cumsum(rows.response_lengths)
    source = ranges((all_ends - rows.lengths)[indices], lengths)
    response_source = ranges((response_ends - rows.response_lengths)[indices], responses)
    ends = np.cumsum(lengths)
    starts, longest = ends - lengths, int(lengths.max())
    predicting = ranges(starts + prompts - 1, responses)
    tokens = rows.tokens[source].astype(np.int64)
    row = np.repeat(np.arange(len(indices)), responses)

    def tensor(values: npt.NDArray[np.generic], dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.as_tensor(values, dtype=dtype).to(device, non_blocking=True)

    def rectangle() -> Rectangle:
        column = np.arange(longest)
        filled = column < lengths[:, None]
        return Rectangle(positions=tensor(np.where(filled, starts[:, None] + column, 0)),
                    cells=tensor(np.flatnonzero(filled)))

    return Pack(
        tokens=tensor(tokens)[None],
        positions=tensor(ranges(np.zeros_like(lengths), lengths))[None],
        starts=tensor(np.append(starts, ends[-1]), torch.int32),
        longest=longest,
        grid=rectangle() if grid else None,
        predicting=tensor(predicting),
        targets=tensor(tokens[predicting + 1]),
        row=tensor(row),
        temperatures=tensor(rows.temperatures[indices][row], torch.float32),
        sampler_logprobs=tensor(rows.sampler_logprobs[response_source], torch.float32),
        advantages=tensor(rows.advantages[indices], torch.float32),
        stale=tensor(rows.stale[indices], torch.bool),
        weight=0.0 if filler else 1.0,
    )


def ranges(starts: Ints, lengths: Ints) -> Ints:
    """starts[0], starts[0]+1, ... (lengths[0] of them), then those of starts[1]: no loop over tokens."""
    offsets = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.repeat(starts, lengths) + offsets
