"""The store as the learner sees it: finished groups, and the log of the steps that train on them.

Groups are the log's content and manifests are its commit records. A manifest is written before the optimizer step, so a
learner that starts again trains on the same groups in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from services.records import Drop, Episode, Manifest, Ticket, TicketKind, decode_episode
from services.store.lease import Lease
from services.store.run_state import Counts, RunState

_PAGE = 64
"""Members looked up at a time; most groups are smaller."""
_LARGEST_GROUP = 4096
_tickets = msgspec.msgpack.Decoder(Ticket)


class Supply(msgspec.Struct, frozen=True, kw_only=True):
    """The training groups that are there at one moment."""

    ready: list[str]
    """Finished groups that no manifest has taken, in order of issue."""
    unfinished: list[str]
    """In order of issue."""
    trained: int
    dropped: int


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """All that the store knows about training groups at one moment."""

    issued: int
    """Groups 0 to issued - 1 have been issued."""
    manifests: dict[int, Manifest]
    drops: list[Drop]
    """Drops that no manifest has taken yet."""
    in_flight: list[str]
    """Unfinished and ready groups."""


class StepLog(RunState):
    """Finished groups, drops, manifests and their retirement."""

    def counts(self) -> Counts:
        """All counts of one moment."""
        counters, outstanding, ready = self.read(
            ("HGETALL", "counters"), ("HKEYS", "outstanding"), ("ZRANGE", "ready", 0, -1))
        named = ("issued", "dropped", "trained", "next_group", "last_step", "retired_step")
        training = sum(group.startswith(b"train/") for group in ready)
        return Counts(
            **{name: int(counters.get(name.encode(), 0)) for name in named},
            outstanding_tickets=sum(ticket.startswith(b"train/") for ticket in outstanding),
            ready_groups=training,
            ready_eval=len(ready) - training,
        )

    def drops(self) -> list[Drop]:
        """Drops since the newest manifest, in order: the next one takes them."""
        (waiting,) = self.read(("LRANGE", "drops", 0, -1))
        return [msgspec.json.decode(drop, type=Drop) for drop in waiting]

    def ready(self, kind: TicketKind) -> list[str]:
        """Finished groups, in order of issue."""
        (names,) = self.read(("ZRANGE", "ready", 0, -1))
        return [name.decode() for name in names if name.startswith(kind.encode() + b"/")]

    def supply(self) -> Supply:
        """The training groups of one moment. Two reads would let a group that finishes in between look like neither."""
        ready, unfinished, counters = self.read(
            ("ZRANGE", "ready", 0, -1), ("ZRANGE", "groups", 0, -1), ("HMGET", "counters", "trained", "dropped"))
        trained, dropped = (int(value or 0) for value in counters)
        training = [[name.decode() for name in names if name.startswith(b"train/")] for names in (ready, unfinished)]
        return Supply(ready=training[0], unfinished=training[1], trained=trained, dropped=dropped)

    def outstanding_groups(self) -> list[str]:
        """Unfinished groups of both kinds, in order of issue."""
        (names,) = self.read(("ZRANGE", "groups", 0, -1))
        return [name.decode() for name in names]

    def episodes(self, group: str) -> list[Episode]:
        """The finished episodes of a group, ordered by k: all of them once it is ready, until it is retired."""
        finished: list[Episode] = []
        for start in range(0, _LARGEST_GROUP, _PAGE):
            ids = [Ticket.id_of(group, k) for k in range(start, start + _PAGE)]
            blobs, entries = self.read(("HMGET", "episodes", *ids), ("HMGET", "outstanding", *ids))
            finished += [decode_episode(blob) for blob in blobs if blob]
            if not (blobs[-1] or entries[-1]):
                break
        return finished

    def task_of(self, group: str) -> str:
        """The task that a group plays, whether or not any episode of it is finished; "" for an unknown group."""
        first = f"{group}#0"
        blob, failed, entry = self.read(
            ("HGET", "episodes", first), ("HGET", "failed", first), ("HGET", "outstanding", first))
        if blob:
            return decode_episode(blob).ticket.task
        if failed:
            return failed.decode().partition("\n")[0]
        if not entry:
            return ""
        stream = "evals" if group.startswith("eval/") else "tickets"
        (found,) = self.read(("XRANGE", stream, entry, entry))
        # Not found: its episode came in, its attempts ran out or the group was dropped since the first look.
        return _tickets.decode(found[0][1][b"ticket"]).task if found else self.task_of(group)

    def begin_step(self, lease: Lease, manifest: Manifest) -> Manifest:
        """Commits to a step before its optimizer update: its groups leave the ready list and count as trained.

        The drops of the result are all those since the previous manifest; give none. If the step has a manifest, it is
        returned unchanged and must be replayed to the letter. Raises NotReady if a group was dropped meanwhile.
        """
        if manifest.drops or not manifest.groups or len(set(manifest.groups)) < len(manifest.groups):
            raise ValueError("begin_step takes distinct groups, at least one, and adds the drops itself")
        if not all(group.startswith("train/") for group in manifest.groups):
            raise ValueError("begin_step takes training groups only")
        head = msgspec.json.encode(manifest).removesuffix(b"]}")
        written = self.script("begin_step", *lease.fence, manifest.step, head, *manifest.groups, role=lease.role)
        return msgspec.json.decode(written, type=Manifest)

    def journal(self) -> Journal:
        """The whole log at one moment, for an audit."""
        issued, manifests, drops, ready, unfinished = self.read(
            ("HGET", "counters", "next_group"), ("HVALS", "manifests"), ("LRANGE", "drops", 0, -1),
            ("ZRANGE", "ready", 0, -1), ("ZRANGE", "groups", 0, -1))
        written = (msgspec.json.decode(manifest, type=Manifest) for manifest in manifests)
        return Journal(
            issued=int(issued or 0), manifests={manifest.step: manifest for manifest in written},
            drops=[msgspec.json.decode(drop, type=Drop) for drop in drops],
            in_flight=[name.decode() for name in (*ready, *unfinished) if name.startswith(b"train/")])

    def attempt(self, lease: Lease, step: int, incarnation: int) -> tuple[int, str]:
        """Counts an attempt to train a manifest, once per incarnation, before it is made.

        Returns how many earlier attempts failed, and the last error that one of them reported ("" if none did).
        """
        failed, cause = self.script("attempt", *lease.fence, step, incarnation, role=lease.role)
        return int(failed), cause.decode()

    def attempt_failed(self, lease: Lease, step: int, cause: str) -> None:
        """Keeps the error that ended an attempt."""
        self.script("attempt_ended", *lease.fence, step, cause, role=lease.role)

    def attempt_succeeded(self, lease: Lease, step: int) -> None:
        """The manifest is trained: its count starts again if it is replayed."""
        self.script("attempt_ended", *lease.fence, step, role=lease.role)

    def skip_step(self, lease: Lease, manifest: Manifest, drops: Sequence[Drop]) -> None:
        """Takes the newest manifest back and drops its groups; the step will train on other groups.

        `drops`: one for each group of the manifest. Raises StoreFault if it is not the newest manifest, or if its
        episodes are retired.
        """
        if [drop.group for drop in drops] != manifest.groups:
            raise ValueError(f"skip_step takes one drop for each group of step {manifest.step}, in order")
        records = [msgspec.json.encode(drop) for drop in (*manifest.drops, *drops)]
        self.script("skip_step", *lease.fence, manifest.step, *records, role=lease.role)

    def manifests(self, after_step: int) -> list[Manifest]:
        """Manifests of the steps after `after_step`, in order."""
        last = self.counts().last_step
        if last <= after_step:
            return []
        (found,) = self.read(("HMGET", "manifests", *range(after_step + 1, last + 1)))
        return [msgspec.json.decode(manifest, type=Manifest) for manifest in found if manifest]

    def retire(self, lease: Lease, step: int) -> int:
        """Deletes the episodes of all manifests up to `step`; returns the bytes freed.

        Only after the checkpoint of `step` and the archive are durable: nothing can be replayed from before it.
        """
        return int(self.script("retire", *lease.fence, step, role=lease.role))

    def retained_bytes(self) -> int:
        """Bytes of all episodes held: over its budget, the learner makes a checkpoint and retires."""
        (held,) = self.read(("HGET", "counters", "bytes"))
        return int(held or 0)

    def agrees_with(self, step: int) -> bool:
        """Whether a run can go on from the checkpoint of `step`: every later manifest is here with its episodes.

        Where it cannot (Redis was emptied, lost its tail, or an older checkpoint was chosen), call reset_to.
        """
        counts = self.counts()
        return counts.retired_step <= step <= counts.last_step

    def reset_to(self, lease: Lease, step: int, next_group: int, *, trained: int | None = None) -> None:
        """The checkpoint wins: forgets all work in flight and goes on after `step` with the group `next_group`.

        `trained`: groups that the checkpoint was trained on; None: all before `next_group`. The rest counts as dropped.
        """
        done = next_group if trained is None else trained
        if not 0 <= done <= next_group:
            raise ValueError(f"{done} groups trained of {next_group} issued")
        self.script("reset", *lease.fence, step, next_group, done, role=lease.role)
