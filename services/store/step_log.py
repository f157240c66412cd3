"""The log of the learner's steps, one manifest for each.

A manifest names the groups that a step trains on. It is written before the optimizer step, so a restarted learner
trains on the same groups in the same order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from services.errors import UserError, in_short
from services.files import NOT_JSON
from services.records import Drop, Manifest
from services.store.connection import Connection
from services.store.lease import Lease

BOUNDS = ("HMGET", "counters", "retired_step", "last_step")
_TRAIN_GROUP = re.compile(r"train/\d{8,}")


class DamagedManifest(UserError):
    """The record of a learner step is not what was written. It never gets better, so the run ends with this."""

    def __init__(self, step: int, why: str) -> None:
        super().__init__(f"the manifest of learner step {step} in Redis is damaged ({why})",
                         f"leave its groups out by --resume --skip-step {step}")


def _manifest(step: int, text: bytes) -> Manifest:
    """Returns the manifest of a step. Raises DamagedManifest if `text` is not a manifest of this step with at least
    one group, or names other groups than training groups."""
    try:
        manifest = msgspec.json.decode(text, type=Manifest)
    except NOT_JSON as error:
        raise DamagedManifest(step, in_short(error)) from None
    if manifest.step != step or not manifest.groups or not all(map(_TRAIN_GROUP.fullmatch, manifest.groups)):
        raise DamagedManifest(step, f"step {manifest.step}, groups {', '.join(manifest.groups) or 'none'}")
    return manifest


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """The entire record of training groups at one moment."""

    issued: int
    """Groups 0 to issued - 1 have been issued."""
    manifests: dict[int, Manifest]
    drops: list[Drop]
    """Drops that no manifest has taken yet."""
    in_flight: list[str]
    """Unfinished and ready groups."""


class StepLog:
    """The manifests of a run, the attempts to train them, and the retirement of their episodes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def begin(self, lease: Lease, manifest: Manifest) -> Manifest:
        """Commits to a step before its optimizer update: its groups leave the ready list and count as trained.

        `manifest` must have no drops: the result has all drops since the previous manifest. If the step already has a
        manifest, that one is returned and must be replayed exactly. Raises NotReady if a group was dropped meanwhile.
        """
        if manifest.drops or not manifest.groups or len(set(manifest.groups)) < len(manifest.groups):
            raise ValueError("begin takes distinct groups, at least one, and adds the drops itself")
        if not all(group.startswith("train/") for group in manifest.groups):
            raise ValueError("begin takes training groups only")
        head = msgspec.json.encode(manifest).removesuffix(b"]}")
        written = self._connection.fenced("begin_step", lease, manifest.step, head, *manifest.groups)
        return _manifest(manifest.step, written)

    def attempt(self, lease: Lease, step: int, incarnation: int) -> tuple[int, str]:
        """Counts an attempt to train a manifest, once per incarnation. Call it before the attempt.

        Returns how many earlier attempts failed, and the last error that one of them reported ("" if none did).
        """
        failed, cause = self._connection.fenced("attempt", lease, step, incarnation)
        return int(failed), cause.decode()

    def attempt_failed(self, lease: Lease, step: int, cause: str) -> None:
        """Records the error that ended an attempt."""
        self._connection.fenced("attempt_ended", lease, step, cause)

    def attempt_succeeded(self, lease: Lease, step: int) -> None:
        """Records that the manifest is trained. If it is replayed, its attempts are counted from zero."""
        self._connection.fenced("attempt_ended", lease, step)

    def retire(self, lease: Lease, step: int) -> int:
        """Deletes the episodes of all manifests up to `step`. Returns the bytes freed.

        Call it only after the checkpoint of `step` and the archive are durable. Earlier steps cannot be replayed then.
        """
        return int(self._connection.fenced("retire", lease, step))

    def agrees_with(self, step: int) -> bool:
        """Whether a run can continue from the checkpoint of `step`: all later manifests are here with their episodes.

        If it cannot (Redis was emptied, lost its last writes, or an older checkpoint was chosen), call reset_to.
        """
        retired, last = self._bounds()
        return retired <= step <= last

    def reset_to(self, lease: Lease, step: int, next_group: int, *, trained: int | None = None) -> None:
        """Resets the store to a checkpoint: forgets all unfinished work and continues after `step` with `next_group`.

        `trained`: number of groups that the checkpoint was trained on; the others before `next_group` count as
        dropped. None: all before `next_group` were trained on.
        """
        done = next_group if trained is None else trained
        if not 0 <= done <= next_group:
            raise ValueError(f"{done} groups trained of {next_group} issued")
        self._connection.fenced("reset", lease, step, next_group, done)

    def skip(self, lease: Lease, manifest: Manifest, drops: Sequence[Drop], *, groups: int | None = None) -> None:
        """Withdraws the newest manifest and drops its groups. The step will train on other groups.

        `drops`: one for each group of the manifest. `groups`: their number, if the manifest may lack some. Raises
        StoreFault if it is not the newest manifest, or if its episodes are retired.
        """
        if [drop.group for drop in drops] != manifest.groups:
            raise ValueError(f"skip takes one drop for each group of step {manifest.step}, in order")
        records = [msgspec.json.encode(drop) for drop in (*manifest.drops, *drops)]
        self._connection.fenced("skip_step", lease, manifest.step, len(drops) if groups is None else groups,
                                len(drops), *records)

    def manifest(self, step: int) -> Manifest | None:
        """Returns the manifest of a step, or None if it has none. Raises DamagedManifest."""
        (text,) = self._connection.read(("HGET", "manifests", step))
        return _manifest(step, text) if text else None

    def manifests(self, after_step: int) -> list[Manifest]:
        """Returns the manifests of the steps after `after_step`, in order. Raises DamagedManifest."""
        _, last = self._bounds()
        if last <= after_step:
            return []
        steps = range(after_step + 1, last + 1)
        (texts,) = self._connection.read(("HMGET", "manifests", *steps))
        return [_manifest(step, text) for step, text in zip(steps, texts, strict=True) if text]

    def journal(self) -> Journal:
        """Returns the entire log at one moment, for an audit. Raises DamagedManifest."""
        issued, manifests, drops, ready, unfinished = self._connection.read(
            ("HGET", "counters", "next_group"), ("HGETALL", "manifests"), ("LRANGE", "drops", 0, -1),
            ("ZRANGE", "ready", 0, -1), ("ZRANGE", "groups", 0, -1))
        return Journal(
            issued=int(issued or 0), manifests={int(step): _manifest(int(step), text) for step, text in
                                                manifests.items()},
            drops=[msgspec.json.decode(drop, type=Drop) for drop in drops],
            in_flight=[name.decode() for name in (*ready, *unfinished) if name.startswith(b"train/")])

    def unclaimed(self) -> list[str]:
        """Returns the training groups with episodes that are in no queue and in no manifest that can be read, in order
        of issue: those of damaged manifests."""
        ids, ready, unfinished, steps = self._connection.read(
            ("HKEYS", "episodes"), ("ZRANGE", "ready", 0, -1), ("ZRANGE", "groups", 0, -1), BOUNDS)
        taken = {name.decode() for name in (*ready, *unfinished)}
        retired, last = (int(step or 0) for step in steps)
        for step in range(retired + 1, last + 1):
            with suppress(DamagedManifest):
                manifest = self.manifest(step)
                taken.update(manifest.groups if manifest else ())
        held = {name.decode().partition("#")[0] for name in ids if name.startswith(b"train/")}
        return sorted(held - taken)

    def _bounds(self) -> tuple[int, int]:
        """Returns the newest step whose episodes are deleted, and the step of the newest manifest."""
        (steps,) = self._connection.read(BOUNDS)
        retired, last = (int(step or 0) for step in steps)
        return retired, last
