"""Demonstrated turns as rows of the learner."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from learner.cold_start.sft_data import TokenRow
from learner.rows.packing import Rows


def rows_to_learn(batch: Sequence[TokenRow], *, prompts: bool) -> Rows:
    """Returns demonstrated rows as rows of the learner, whose responses are the tokens to learn: the answers, with
    `prompts` also all but the first token of each prompt that counts."""
    lengths = np.array([len(row.ids) for row in batch])
    begins = np.array([1 if prompts and row.learn_prompt else max(1, row.prompt_tokens) for row in batch])
    n, tokens = len(batch), int((lengths - begins).sum())
    return Rows(
        tokens=np.concatenate([row.ids for row in batch]), sequence=np.arange(n), prompt_lengths=begins,
        response_lengths=lengths - begins, sampler_logprobs=np.zeros(tokens, dtype=np.float32),
        advantages=np.zeros(n), temperatures=np.ones(n), stale=np.zeros(n, dtype=np.bool_),
        ends=np.ones(n, dtype=np.bool_))


def shown_at(demonstrations: Sequence[TokenRow], step: int, *, count: int, seed: int) -> list[TokenRow]:
    """Returns the `count` rows of learner step `step`, counted from 1: a function of its arguments alone.

    The steps take consecutive parts of an endless order, in which each epoch has every row once, in an order of its
    own.
    """
    total, start = len(demonstrations), (step - 1) * count
    epochs = range(start // total, (start + count - 1) // total + 1)
    orders = np.concatenate([np.random.default_rng([seed, epoch]).permutation(total) for epoch in epochs])
    first = start - epochs[0] * total
    return [demonstrations[place] for place in orders[first:first + count]]
