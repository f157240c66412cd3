"""Rows that continue one another, joined into one sequence of tokens.

A call of a conversation reads the calls before it. If its prompt begins with the tokens of an earlier call, prompt and
answer, both are one sequence: the earlier tokens are computed once, and each call keeps its own answer, advantage and
temperature. A causal model computes the same for a token in either form, so logprobs and gradients are the same.
Whoever recorded a step says which one it continues; the tokens are compared again here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from services.records import Step

Ints = npt.NDArray[np.int64]


def tokens_of(step: Step) -> npt.NDArray[np.int32]:
    """Prompt and answer of a step, int32 [P + R]."""
    return np.concatenate([step.prompt_ids, step.response_ids])


def joined(steps: Sequence[Step], follows: Sequence[int | None]) -> Ints:
    """[N] the sequence of each row, numbered by their first rows.

    `follows` names the row that each row continues, or None. If two rows name the same one, only the
    first of them joins its sequence, and the other starts a sequence of its own. Raises ValueError if the tokens of a
    row do not continue those of the row that it names.
    """
    sequence, last = np.zeros(len(steps), dtype=np.int64), dict[int, int]()
    for row, before in enumerate(follows):
        if before is not None and not (before < row and steps[before].is_continued_by(steps[row].prompt_ids)):
            raise ValueError(f"row {row} does not begin with the tokens of row {before}, which it is said to continue")
        goes_on = before is not None and last[int(sequence[before])] == before
        sequence[row] = sequence[before] if before is not None and goes_on else len(last)
        last[int(sequence[row])] = row
    return sequence


def last_rows(sequence: Ints) -> Ints:
    """[M] the last row of each sequence."""
    found = np.zeros(int(sequence.max()) + 1, dtype=np.int64)
    np.maximum.at(found, sequence, np.arange(len(sequence)))
    return found


def runs(sequence: Ints, count: int) -> list[Ints]:
    """Consecutive rows in about `count` parts, as equal as can be without cutting a sequence: [part][row]."""
    rows = np.arange(len(sequence))
    whole = np.flatnonzero(np.maximum.accumulate(last_rows(sequence)[sequence]) == rows) + 1  # ends that cut nothing
    wanted = np.array([part[-1] + 1 for part in np.array_split(rows, count)])
    ends = np.unique(np.append(whole, 0)[np.searchsorted(whole, wanted, side="right") - 1])
    return np.split(rows, ends[(ends > 0) & (ends < len(rows))])
