"""Leaves out the groups of a learner step that cannot be trained: `gagpo train --resume --skip-step S`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from services.errors import UserError
from services.records import Drop, Episode, Manifest
from services.store.lease import Lease
from services.store.step_log import DamagedManifest
from services.store.store import Store

REASON = "skipped by --skip-step"
WAITING = "issued for a step after the one that --skip-step left out"


def skip_step(store: Store, lease: Lease, step: int, *,
              keep: Callable[[Mapping[Drop, list[Episode]]], object]) -> list[Drop]:
    """Withdraws the manifest of `step` and drops its groups, so that the step trains on other groups.

    Groups that wait for the weights of `step` are dropped as well, because the step itself needs groups before it can
    make these weights. Returns the drops of the manifest. `keep` gets the drops with their episodes before the store
    forgets them. If the manifest is damaged, the manifests of later steps are withdrawn too, and groups that are in no
    queue and no readable manifest count as its own. Raises UserError if the step has no manifest, or if later steps or
    a checkpoint depend on it.
    """
    counts = store.counts()
    within = counts.retired_step < step <= counts.last_step
    if not within or (step < counts.last_step and _manifest(store, step).groups):
        possible = "no step"
        if counts.last_step > counts.retired_step:
            possible = f"only step {counts.last_step}, or one with a damaged manifest,"
        kept_until = f" (the steps up to {counts.retired_step} are in a checkpoint)" if counts.retired_step else ""
        raise UserError(f"learner step {step} cannot be skipped: {possible} can be{kept_until}",
                        "leave --skip-step out, or name that step")
    supply = store.supply()

    def kept(groups: Sequence[str], reason: str) -> list[Drop]:
        dropped = store.to_drop(dict.fromkeys(groups, reason))
        keep(dropped)
        return list(dropped)

    # First: if the process dies after this, the manifest still exists, so the same command can be repeated.
    waiting = [group for group in (*supply.ready, *supply.unfinished) if store.needs(group) >= step]
    store.drop(lease, *kept(waiting, WAITING))
    skipped: list[Drop] = []
    for newest in range(counts.last_step, step - 1, -1):
        manifest = _manifest(store, newest)
        manifest = manifest if manifest.groups else msgspec.structs.replace(manifest, groups=store.steps.unclaimed())
        skipped = kept(manifest.groups, REASON)
        store.steps.skip(lease, manifest, skipped, groups=counts.trained // counts.last_step)
    return skipped


def _manifest(store: Store, step: int) -> Manifest:
    """Returns the manifest of a step, without groups if it is damaged or gone."""
    try:
        manifest = store.steps.manifest(step)
    except DamagedManifest:
        manifest = None
    return manifest or Manifest(step=step, incarnation=0, groups=[], drops=[])
