"""Tokens that rows share are computed once. A causal model computes the same for a token of all rows that are equal up
to it, so logprobs and gradients do not change.

Rows that continue one another are joined into one sequence. A call of a conversation reads the calls before it. If its
prompt begins with the tokens of an earlier call, prompt and answer, both are one sequence, and each call keeps its own
answer, advantage and temperature. The recorder of a step names the step that it continues; the tokens are compared
again here.

Sequences that begin alike share a prefix. If attention lays sequences out as a rectangle, a pack holds the tokens with
which a sequence and the one before it begin alike once, and several cells of the rectangle point at one token.
Embeddings, projections and MLPs compute S tokens, attention still all cells:

    sequences    own tokens    S = 0 1 2 3 4 5 6    cells
    a b c d      a b c d           a b c d x y z    0 1 2 3
    a b x        x                                  0 1 4
    a y z        y z                                0 5 6

Prompts of one game repeat much: in the guessing game of instruct-cpu four of five tokens. Kernels for sequences of any
length, which GPUs have, point at no token twice, so their packs share nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from services.records import Step

Ints = npt.NDArray[np.int64]


def tokens_of(step: Step) -> npt.NDArray[np.int32]:
    """Returns prompt and answer of a step, int32 [P + R]."""
    return np.concatenate([step.prompt_ids, step.response_ids])


def joined(steps: Sequence[Step], follows: Sequence[int | None]) -> Ints:
    """Returns the sequence of each row, [N], numbered in the order of their first rows.

    `follows` [N]: the row that each row continues, or None. If two rows continue the same one, only the first of them
    joins its sequence, and the other starts a new one. Raises ValueError if the tokens of a row do not continue those
    of the row in `follows`.
    """
    sequence, last = np.zeros(len(steps), dtype=np.int64), dict[int, int]()
    for row, before in enumerate(follows):
        if before is not None and not (before < row and steps[before].is_continued_by(steps[row].prompt_ids)):
            raise ValueError(f"row {row} does not begin with the tokens of row {before}, which it should continue")
        joins = before is not None and last[int(sequence[before])] == before
        sequence[row] = sequence[before] if before is not None and joins else len(last)
        last[int(sequence[row])] = row
    return sequence


def last_rows(sequence: Ints) -> Ints:
    """Returns the last row of each sequence, [M]."""
    last = np.zeros(int(sequence.max()) + 1, dtype=np.int64)
    np.maximum.at(last, sequence, np.arange(len(sequence)))
    return last


def runs(sequence: Ints, count: int) -> list[Ints]:
    """Returns consecutive rows in about `count` parts of nearly equal sizes that cut no sequence, [part][row]."""
    rows = np.arange(len(sequence))
    allowed = np.flatnonzero(np.maximum.accumulate(last_rows(sequence)[sequence]) == rows) + 1  # ends that cut nothing
    wanted = np.array([part[-1] + 1 for part in np.array_split(rows, count)])
    ends = np.unique(np.append(allowed, 0)[np.searchsorted(allowed, wanted, side="right") - 1])
    return np.split(rows, ends[(ends > 0) & (ends < len(rows))])


CELL = 0.25
"""Tokens that a cell of the rectangle counts as: about its share of a token's time, and twice its share of the memory.
"""


def shared_lengths(sequences: Sequence[Ints]) -> Ints:
    """Returns the length of the common prefix of each sequence and the one before it, [m]; 0 for the first."""
    shared = np.zeros(len(sequences), dtype=np.int64)
    for i, (before, now) in enumerate(pairwise(sequences), start=1):
        most = min(len(before), len(now))
        different = np.flatnonzero(before[:most] != now[:most])
        shared[i] = different[0] if len(different) else most
    return shared


def places_of(lengths: Ints, shared: Ints) -> Ints:
    """Returns the position in S of each token of each sequence, one sequence after another. lengths, shared [m].

    A shared token has the position that it has in the sequence before.
    """
    own = lengths - shared
    places = [np.arange(end - count, end) for count, end in zip(own, np.cumsum(own), strict=True)]
    for i, common in enumerate(shared):
        if common:
            places[i] = np.concatenate([places[i - 1][:common], places[i]])
    return np.concatenate(places)


def share_prefixes(plan: list[list[Ints]], contents: Sequence[Ints], token_budget: int) -> list[list[Ints]]:
    """Returns packs [rank][pack] of the same sequences for each rank, sorted by their tokens where that saves more
    tokens than it adds padding. `contents` [M]: the tokens of each sequence.

    A sorted pack has S + CELL * cells within the budget, unless it is a single sequence. Every rank gets the same
    number of packs; some may be empty.
    """
    packs = [_cheaper([pack for pack in own if len(pack)], contents, token_budget) for own in plan]
    most = max(map(len, packs))
    return [own + [np.empty(0, dtype=np.int64)] * (most - len(own)) for own in packs]


def _cheaper(packs: list[Ints], contents: Sequence[Ints], token_budget: int) -> list[Ints]:
    indices = np.concatenate([np.empty(0, dtype=np.int64), *packs])
    ordered = sorted(indices.tolist(), key=lambda i: contents[i].astype(">u4").tobytes())
    by_tokens = _cut(ordered, contents, token_budget)
    (tokens, cells), (tokens_then, cells_then) = _size(packs, contents), _size(by_tokens, contents)
    return by_tokens if tokens - tokens_then > max(0.0, CELL * (cells_then - cells)) else packs


def _cut(ordered: list[int], contents: Sequence[Ints], token_budget: int) -> list[Ints]:
    packs: list[list[int]] = []
    tokens = longest = 0
    for i, common in zip(ordered, shared_lengths([contents[i] for i in ordered]).tolist(), strict=True):
        length = len(contents[i])
        tokens, longest = tokens + length - common, max(longest, length)
        if not packs or tokens + CELL * longest * (len(packs[-1]) + 1) > token_budget:
            packs.append([])
            tokens = longest = length
        packs[-1].append(i)
    return [np.array(pack, dtype=np.int64) for pack in packs]


def _size(packs: list[Ints], contents: Sequence[Ints]) -> tuple[int, int]:
    """Returns the tokens S and the cells m x L of all packs together."""
    sequences = [[contents[i] for i in pack] for pack in packs]
    tokens = sum(sum(map(len, some)) - int(shared_lengths(some).sum()) for some in sequences)
    return tokens, sum(len(some) * max(map(len, some)) for some in sequences)
