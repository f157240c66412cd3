"""Rows packed without padding.

Legend: N rows and M sequences of a batch, n rows and m sequences of one pack, S tokens of a pack, T response tokens of
a pack, L its longest sequence. A row is one step of an episode: its prompt and its response. Rows that continue one
another share a sequence (sequences.py); any other row is a sequence. A pack is one forward pass: sequences one after
another in S tokens, so that embeddings, projections and MLPs compute no padding. If attention has no kernel for
sequences of any length (learner/model/attention.py), it lays them out as an [m, L] rectangle. They are packed by
length, so that the rectangle is nearly full, or so that they share tokens (sequences.py). On CPUs that is three to
eight times as fast as one block-diagonal mask of S x S. A sequence never attends to another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from learner.rows.sequences import Ints, joined, last_rows, places_of, shared_lengths, tokens_of
from services.records import Step

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of a batch in training order. Every rank has all of them, as flat arrays, which are quick to send."""

    tokens: npt.NDArray[np.int32]
    """Tokens of sequence 0, of sequence 1, ...: prompt and response of its last row."""
    sequence: Ints
    """[N]: the sequence of each row, numbered in the order of their first rows."""
    prompt_lengths: Ints
    """[N]: position of a row's response in its sequence."""
    response_lengths: Ints
    """[N], each at least 1."""
    sampler_logprobs: npt.NDArray[np.float32]
    """Those of all responses, one after another."""
    advantages: Floats
    """[N]."""
    temperatures: Floats
    """[N]: sampling temperatures. All logprobs are of the tempered distribution."""
    stale: npt.NDArray[np.bool_]
    """[N]: whether an older policy sampled some token of the row."""
    ends: npt.NDArray[np.bool_]
    """[N]: whether the row is the last one of its episode. The rows of an episode follow one another."""

    def __len__(self) -> int:
        return len(self.prompt_lengths)

    @property
    def lengths(self) -> Ints:
        """[M]: number of tokens of each sequence."""
        return (self.prompt_lengths + self.response_lengths)[last_rows(self.sequence)]

    @property
    def contents(self) -> list[Ints]:
        """[M]: the tokens of each sequence."""
        return np.split(self.tokens.astype(np.int64), np.cumsum(self.lengths)[:-1])


def make_rows(steps: Sequence[Step], *, advantages: Sequence[float], temperatures: Sequence[float],
              stale: Sequence[bool], follows: Sequence[int | None] | None = None,
              ends: Sequence[bool] | None = None) -> Rows:
    """Returns the rows of these steps, in their order.

    `follows`: the row that each row continues, if any. `ends`: whether a row is the last one of its episode; without it
    each row is an episode. Raises ValueError for an empty prompt or response, for another number of logprobs than
    response tokens, and for a row that does not continue the one in `follows`.
    """
    for step in steps:
        if not len(step.prompt_ids) or not len(step.response_ids):
            raise ValueError(f"a step has {len(step.prompt_ids)} prompt and {len(step.response_ids)} response tokens")
        if len(step.logprobs) != len(step.response_ids):
            raise ValueError(f"a step has {len(step.response_ids)} response tokens, {len(step.logprobs)} logprobs")
    sequence = joined(steps, follows or [None] * len(steps))
    return Rows(
        tokens=np.concatenate([tokens_of(steps[row]) for row in last_rows(sequence)]),
        sequence=sequence,
        prompt_lengths=np.array([len(step.prompt_ids) for step in steps]),
        response_lengths=np.array([len(step.response_ids) for step in steps]),
        sampler_logprobs=np.concatenate([step.logprobs for step in steps]),
        advantages=np.array(advantages, dtype=np.float64),
        temperatures=np.array(temperatures, dtype=np.float64),
        stale=np.array(stale, dtype=np.bool_),
        ends=np.ones(len(steps), np.bool_) if ends is None else np.array(ends, dtype=np.bool_),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rectangle:
    """The places of a pack's tokens in the rectangle of attention."""

    positions: Tensor
    """int64 [m, L]: the position in S of each cell. Sequences that begin alike point at the same tokens; cells right of
    a sequence's end point at 0."""
    cells: Tensor
    """int64 [S]: a cell of each token in the flattened rectangle, of the first sequence that has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """One forward pass."""

    tokens: Tensor
    """int64 [1, S]."""
    positions: Tensor
    """int64 [1, S]: the position of each token in its sequence."""
    starts: Tensor
    """int32 [m + 1]: where in S the own tokens of each sequence start, and S."""
    longest: int
    """L, the length of the longest sequence."""
    grid: Rectangle | None
    """None if attention takes the sequences as they lie."""
    members: Ints
    """[n]: the rows of the batch that are in it. A filler's are trained on elsewhere."""
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
    places: Tensor
    """int64 [T]: the place of each response token among those of the batch, in the order of its rows."""
    weight: float = 1.0
    """0 for a filler, which only keeps the ranks' collectives in step."""

    @property
    def num_rows(self) -> int:
        """n, the number of rows."""
        return len(self.advantages)


def split(lengths: Ints, ranks: int, token_budget: int, *, grid: bool = True,
          pair_cost: float = 0.0) -> list[list[Ints]]:
    """Returns indices of sequences [rank][pack]: the same on every rank, with the same number of packs for every rank.

    Longest first, each to the rank with the fewest tokens so far; then `cut`. Ranks wait for each other in every pack,
    so without a grid the work of single packs is balanced instead, if that shortens the waits. The work of l tokens is
    l + pair_cost l² (Shape.pair_cost).
    """
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for index in np.argsort(-lengths, kind="stable"):
        rank = loads.index(min(loads))
        shares[rank].append(int(index))
        loads[rank] += int(lengths[index])
    by_rank = cut([np.array(share, dtype=np.int64) for share in shares], lengths, token_budget, grid=grid)
    if grid or ranks == 1:
        return by_rank
    work = lengths + pair_cost * lengths.astype(np.float64) ** 2
    least = -(-int(lengths.sum()) // (ranks * token_budget))
    options = [by_rank, *(packs for count in range(least, len(by_rank[0]) + 1)
                          if (packs := _level(work, lengths, ranks, count, token_budget)) is not None)]
    return min(options, key=lambda packs: slowest(packs, work))


def _level(work: Floats, lengths: Ints, ranks: int, count: int, token_budget: int) -> list[list[Ints]] | None:
    """Returns `count` packs for each rank with nearly equal work, [rank][pack]; None if they do not fit.

    Longest first, each to the pack with the least work so far that has room. Packs of similar work run at once.
    """
    packs: list[list[int]] = [[] for _ in range(ranks * count)]
    loads, tokens = np.zeros(len(packs)), np.zeros(len(packs), dtype=np.int64)
    for index in np.argsort(-lengths, kind="stable"):
        room = (tokens + lengths[index] <= token_budget) | (tokens == 0)
        if not room.any():
            return None
        place = int(np.argmin(np.where(room, loads, np.inf)))
        packs[place].append(int(index))
        loads[place] += work[index]
        tokens[place] += lengths[index]
    order = np.argsort(-loads, kind="stable").reshape(count, ranks)
    order[1::2] = order[1::2, ::-1]  # so that no rank gets the fullest pack of each row
    return [[np.array(packs[place], dtype=np.int64) for place in own] for own in order.T]


def slowest(packs: list[list[Ints]], work: Floats) -> float:
    """Returns the work of the busiest rank in each pack [rank][pack], summed over the packs. `work` [M]."""
    return sum(max(float(work[pack].sum()) for pack in at_once) for at_once in zip(*packs, strict=True))


def cut(shares: Sequence[Ints], lengths: Ints, token_budget: int, *, grid: bool = True) -> list[list[Ints]]:
    """Returns indices of sequences [rank][pack], given those of each rank, `shares` [rank].

    The sequences of a rank, in descending order of length, are cut where m x L (without a grid: S) would exceed the
    budget. A rank with fewer packs than another gets empty ones.
    """
    packs = [_cut(share[np.argsort(-lengths[share], kind="stable")], lengths, token_budget, grid=grid)
             for share in shares]
    most = max(map(len, packs))
    return [own + [np.empty(0, dtype=np.int64)] * (most - len(own)) for own in packs]


def _cut(share: Ints, lengths: Ints, token_budget: int, *, grid: bool) -> list[Ints]:
    """`share` is in descending order of length, so a pack's first sequence is its longest."""
    ends = np.concatenate([[0], np.cumsum(lengths[share])])
    packs: list[Ints] = []
    start = 0
    while start < len(share):
        size = (token_budget // int(lengths[share[start]]) if grid else
                int(np.searchsorted(ends, ends[start] + token_budget, side="right")) - 1 - start)
        packs.append(share[start:start + max(1, size)])
        start += max(1, size)
    return packs


def pack_rows(rows: Rows, indices: Ints, device: torch.device | str = "cpu", *, grid: bool = True) -> Pack:
    """Returns the pack of these sequences; for none, a filler of weight 0 made of the batch's shortest one."""
    filler, all_lengths = len(indices) == 0, rows.lengths
    if filler:
        indices = np.array([int(np.argmin(all_lengths))])
    members, places = _rows_in(rows.sequence, indices)
    prompts, responses, lengths = rows.prompt_lengths[members], rows.response_lengths[members], all_lengths[indices]
    response_ends = np.cumsum(rows.response_lengths)
    response_source = ranges((response_ends - rows.response_lengths)[members], responses)
    # All tokens of these sequences [A], one sequence after another, and the position of each in S.
    contents = rows.tokens[ranges((np.cumsum(all_lengths) - all_lengths)[indices], lengths)].astype(np.int64)
    starts, within = np.cumsum(lengths) - lengths, ranges(np.zeros_like(lengths), lengths)
    shared = shared_lengths(np.split(contents, starts[1:])) if grid else np.zeros_like(lengths)
    own, place = within >= np.repeat(shared, lengths), places_of(lengths, shared)
    before = ranges(starts[places] + prompts - 1, responses)  # [T]: the token before each response token
    longest, row = int(lengths.max()), np.repeat(np.arange(len(members)), responses)

    def tensor(values: npt.NDArray[np.generic], dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.as_tensor(values, dtype=dtype).to(device, non_blocking=True)

    return Pack(
        tokens=tensor(contents[own])[None],
        positions=tensor(within[own])[None],
        starts=tensor(np.concatenate([[0], np.cumsum(lengths - shared)]), torch.int32),
        longest=longest,
        grid=_rectangle(lengths, shared, device) if grid else None,
        members=members,
        predicting=tensor(place[before]),
        targets=tensor(contents[before + 1]),
        row=tensor(row),
        temperatures=tensor(rows.temperatures[members][row], torch.float32),
        sampler_logprobs=tensor(rows.sampler_logprobs[response_source], torch.float32),
        advantages=tensor(rows.advantages[members], torch.float32),
        stale=tensor(rows.stale[members], torch.bool),
        places=tensor(response_source),
        weight=0.0 if filler else 1.0,
    )


def _rectangle(lengths: Ints, shared: Ints, device: torch.device | str) -> Rectangle:
    """Returns the rectangle of m sequences. lengths, shared [m]: all tokens, and those shared with the one before."""
    within, longest = ranges(np.zeros_like(lengths), lengths), int(lengths.max())
    cells = np.repeat(np.arange(len(lengths)) * longest, lengths) + within
    positions = np.zeros((len(lengths), longest), dtype=np.int64)
    positions.flat[cells] = places_of(lengths, shared)
    own = within >= np.repeat(shared, lengths)
    return Rectangle(cells=torch.as_tensor(cells[own]).to(device), positions=torch.as_tensor(positions).to(device))


def _rows_in(sequence: Ints, indices: Ints) -> tuple[Ints, Ints]:
    """Returns the rows of these sequences, in that order, and the place of each row's sequence in it. [n] each."""
    place = np.full(int(sequence.max()) + 1, -1, dtype=np.int64)
    place[indices] = np.arange(len(indices))
    members = np.flatnonzero(place[sequence] >= 0)
    members = members[np.argsort(place[sequence[members]], kind="stable")]
    return members, place[sequence[members]]


def ranges(starts: Ints, lengths: Ints) -> Ints:
    """Returns starts[0], starts[0]+1, ... (lengths[0] numbers), then those of starts[1], and so on."""
    offsets = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.repeat(starts, lengths) + offsets
