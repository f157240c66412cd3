"""The rows of the archive for the episodes of a learner step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from learner.credit.types import Credit
from learner.rows.packing import Floats
from services.records import Episode
from services.store.archive import ArchiveRow


def trained_rows(
        groups: Sequence[Sequence[Episode]], credits: Sequence[Credit], logprobs: Iterable[Floats]) -> list[ArchiveRow]:
    """Returns the archive's rows of a learner step, in the order of its groups.

    `logprobs`: the learner's, of the response tokens of each turn, in the same order.
    """
    turns = iter(logprobs)
    return [
        ArchiveRow(episode=episode, outcome="trained",
                   columns=credit_columns(credit, k) | {"learner_logprobs": list(islice(turns, len(episode.steps)))})
        for group, credit in zip(groups, credits, strict=True) for k, episode in enumerate(group)]


def credit_columns(credit: Credit, k: int) -> dict[str, Sequence[Any]]:
    """Returns the archive's credit columns of episode k, without columns that the estimator does not compute."""
    columns: dict[str, Sequence[Any]] = {
        "advantage": credit.advantages[k], "raw_advantage": credit.raw_advantages[k], "return": credit.returns[k],
        "state_key": credit.states[k]}
    if credit.values is not None:
        columns["value"] = [credit.values[state][0] for state in credit.states[k]]
    if credit.deltas is not None:
        columns["delta"] = credit.deltas[k]
    if credit.baselines is not None:
        columns["baseline"] = credit.baselines[k]
    return columns
