"""Counts how often a learner step was tried, so that a step that cannot be trained ends the run instead of looping.

The manifest of a step is replayed exactly. So a step that failed because of its own groups (no memory for the longest
rows, a group that credit cannot read) fails again in every process of the learner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

from services.errors import UserError, in_short
from services.records import Episode, Manifest
from services.rewards import LARGEST_REWARD
from services.store.lease import Lease
from services.store.store import Store

SILENT = "the learner died without an error, as when the machine runs out of memory"


@contextmanager
def counted_attempt(store: Store, lease: Lease, manifest: Manifest, *, incarnation: int, limit: int) -> Iterator[None]:
    """Counts its block, the training on one manifest, as an attempt. Raises UserError once `limit` attempts failed."""
    failed, cause = store.steps.attempt(lease, manifest.step, incarnation)
    if failed >= limit:
        raise given_up(manifest, failed, cause or SILENT)
    try:
        yield
    except Exception as error:
        cause = in_short(error)
        store.steps.attempt_failed(lease, manifest.step, cause)
        if failed + 1 >= limit:
            raise given_up(manifest, failed + 1, cause) from error
        raise
    store.steps.attempt_succeeded(lease, manifest.step)


def check_numbers(step: int, groups: Sequence[Sequence[Episode]]) -> None:
    """Raises UserError for an episode with an extreme_number. An older version committed such episodes."""
    for episode in chain.from_iterable(groups):
        if number := episode.extreme_number:
            raise UserError(
                f"learner step {step} cannot be trained: episode {episode.ticket.id} ({episode.ticket.task}) has "
                f"{number}, and at most {LARGEST_REWARD:g} in size is taken",
                f"leave the groups of this step out by --resume --skip-step {step}")


def given_up(manifest: Manifest, failed: int, cause: str) -> UserError:
    """Returns the error that ends the run."""
    return UserError(
        f"learner step {manifest.step} failed {failed} times on {', '.join(manifest.groups)} ({cause})",
        "go on with --resume after a change of learner.token_budget, learner.ranks or learner.gpus, or leave these "
        f"groups out by --resume --skip-step {manifest.step}")
