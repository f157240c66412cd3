"""Sequences of a pack that begin alike, whose common tokens are computed once.

A causal model computes the same for a token of all sequences that are equal up to it. If attention lays sequences out
as a rectangle, a pack holds the tokens with which a sequence and the one before it begin alike once, and several cells
of the rectangle point at one token. Embeddings, projections and MLPs compute S tokens, attention still all cells:

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

from learner.rows.sequences import Ints

CELL = 0.25
"""Tokens that a cell of the rectangle counts as: about its share of a token's time, and twice its share of the memory.
"""


def shared_lengths(sequences: Sequence[Ints]) -> Ints:
    """Returns with how many tokens each sequence and the one before it begin alike, [m]; 0 for the first."""
    shared = np.zeros(len(sequences), dtype=np.int64)
    for i, (before, now) in enumerate(pairwise(sequences), start=1):
        most = min(len(before), len(now))
        parted = np.flatnonzero(before[:most] != now[:most])
        shared[i] = parted[0] if len(parted) else most
    return shared


def places_of(lengths: Ints, shared: Ints) -> Ints:
    """Returns where in S each token of each sequence is, one sequence after another. [m] lengths and shared.

    A token that a sequence shares has the place that it has in the sequence before.
    """
    own = lengths - shared
    places = [np.arange(end - count, end) for count, end in zip(own, np.cumsum(own), strict=True)]
    for i, common in enumerate(shared):
        if common:
            places[i] = np.concatenate([places[i - 1][:common], places[i]])
    return np.concatenate(places)


def share_prefixes(plan: list[list[Ints]], contents: Sequence[Ints], token_budget: int) -> list[list[Ints]]:
    """Returns packs [rank][pack] of the same sequences for each rank, in the order of their tokens where that saves
    more tokens than it adds padding. `contents` [M]: the tokens of each sequence.

    A pack in the order of tokens has at most the budget, S and CELL for each cell, unless it is a single sequence.
    Every rank gets the same number of packs; some may be empty.
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
