"""Leaves out the groups of a learner step that cannot be trained: `gagpo train --resume --skip-step S`."""

from __future__ import annotations

from collections.abc import Callable

from services.errors import UserError
from services.records import Drop, Episode
from services.store.lease import Lease
from services.store.store import Store

REASON = "skipped by --skip-step"


def skip_step(store: Store, lease: Lease, step: int, *, keep: Callable[[Drop, list[Episode]], object]) -> list[Drop]:
    """Withdraws the manifest of `step` and drops its groups, so that the step trains on other groups.

    `keep` gets each drop with its episodes before the store forgets them. Raises UserError if the step has no manifest,
    or if later steps or a checkpoint depend on it.
    """
    counts = store.counts()
    if not counts.retired_step < step == counts.last_step:
        possible = f"only step {counts.last_step}" if counts.last_step > counts.retired_step else "no step"
        raise UserError(f"learner step {step} cannot be skipped: {possible} can be (the steps up to "
                        f"{counts.retired_step} are in a checkpoint)", "leave --skip-step out, or name that step")
    (manifest,) = store.manifests(step - 1)
    drops: list[Drop] = []
    for group in manifest.groups:
        episodes = store.episodes(group)
        drop = Drop.of(episodes, group=group, task=store.task_of(group), reason=REASON)
        keep(drop, episodes)
        drops.append(drop)
    store.skip_step(lease, manifest, drops)
    return drops
