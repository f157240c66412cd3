"""Leaves out the groups of a learner step that cannot be trained: `gagpo train --resume --skip-step S`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from services.errors import UserError
from services.records import Drop, Episode
from services.store.lease import Lease
from services.store.store import Store

REASON = "skipped by --skip-step"
WAITING = "issued for a step after the one that --skip-step left out"


def skip_step(store: Store, lease: Lease, step: int, *,
              keep: Callable[[Mapping[Drop, list[Episode]]], object]) -> list[Drop]:
    """Withdraws the manifest of `step` and drops its groups, so that the step trains on other groups.

    Groups that wait for the weights of `step` are dropped as well, because the step itself needs groups before it can
    make these weights. Returns the drops of the manifest. `keep` gets the drops with their episodes before the store
    forgets them. Raises UserError if the step has no manifest, or if later steps or a checkpoint depend on it.
    """
    counts = store.counts()
    if not counts.retired_step < step == counts.last_step:
        possible = f"only step {counts.last_step}" if counts.last_step > counts.retired_step else "no step"
        raise UserError(f"learner step {step} cannot be skipped: {possible} can be (the steps up to "
                        f"{counts.retired_step} are in a checkpoint)", "leave --skip-step out, or name that step")
    (manifest,) = store.manifests(step - 1)
    supply = store.supply()

    def kept(groups: Sequence[str], reason: str) -> list[Drop]:
        dropped = store.to_drop(dict.fromkeys(groups, reason))
        keep(dropped)
        return list(dropped)

    # First, so that the same command ends what a process began that dies in between: the manifest is still there.
    waiting = [group for group in (*supply.ready, *supply.unfinished) if store.needs(group) >= step]
    store.drop(lease, *kept(waiting, WAITING))
    skipped = kept(manifest.groups, REASON)
    store.skip_step(lease, manifest, skipped)
    return skipped
