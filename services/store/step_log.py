"""The store as the learner sees it: finished groups, and the log of the steps that train on them.

Groups are the log's content and manifests are its commit records. A manifest is written before the optimizer step, so a
restarted learner trains on the same groups in the same order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from services.config.redis import RedisSection
from services.errors import StoreFault, UserError, in_short
from services.files import NOT_JSON
from services.records import Drop, Episode, Manifest, Ticket, TicketKind, decode_drop, decode_manifest
from services.store.bodies import Bodies, Lost
from services.store.lease import Lease
from services.store.run_state import Counts, RunState
from services.telemetry.logs import get_logger

_PAGE = 64
"""Number of members that are read at once. Most groups are smaller."""
_LARGEST_GROUP = 4096
_TRAIN_GROUP = re.compile(r"train/\d{8,}")
RETAINED_BYTES = 2 << 30
"""Most bytes of episodes that are held before a checkpoint is made early."""
log = get_logger("store")
_tickets = msgspec.msgpack.Decoder(Ticket)


class DamagedManifest(UserError):
    """The record of a learner step is not what was written. It never gets better, so the run ends with this."""

    def __init__(self, step: int, why: str) -> None:
        super().__init__(f"the manifest of learner step {step} in Redis is damaged ({why})",
                         f"leave its groups out by --resume --skip-step {step}")


def _manifest(step: int, text: bytes) -> Manifest:
    """Returns the manifest of a step. Raises DamagedManifest if `text` is none, or one of another step or of groups
    that no training group's name names."""
    try:
        manifest = decode_manifest(text)
    except (*NOT_JSON, KeyError, TypeError, AttributeError) as error:
        raise DamagedManifest(step, in_short(error)) from None
    if manifest.step != step or not manifest.groups or not all(map(_TRAIN_GROUP.fullmatch, manifest.groups)):
        raise DamagedManifest(step, f"step {manifest.step}, groups {', '.join(manifest.groups) or 'none'}")
    return manifest


def whole(episodes: Sequence[Episode]) -> bool:
    """Returns whether these are all episodes of their group."""
    return bool(episodes) and len(episodes) == episodes[0].ticket.size


class Supply(msgspec.Struct, frozen=True, kw_only=True):
    """The training groups at one moment."""

    ready: list[str]
    """Finished groups that no manifest has taken, in order of issue."""
    unfinished: list[str]
    """Unfinished groups, in order of issue."""
    trained: int
    dropped: int


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """The store's whole record of training groups at one moment."""

    issued: int
    """Groups 0 to issued - 1 have been issued."""
    manifests: dict[int, Manifest]
    drops: list[Drop]
    """Drops that no manifest has taken yet."""
    in_flight: list[str]
    """Unfinished and ready groups."""


class StepLog(RunState):
    """Finished groups, drops, manifests and their retirement."""

    def __init__(self, url: str, run: str, timeout_s: float, settings: RedisSection, *, disk_s: float = 0.0) -> None:
        super().__init__(url, run, timeout_s, settings, disk_s=disk_s)
        self.bodies = Bodies(settings.bodies, run, settings.outage_seconds)
        self.longest_s += self.bodies.longest_s

    def counts(self) -> Counts:
        """Returns all counts at one moment."""
        counters, waiting, failed, ready = self.read(
            ("HGETALL", "counters"), ("XLEN", "tickets"), ("HKEYS", "failed"), ("ZRANGE", "ready", 0, -1))
        named = ("issued", "dropped", "trained", "next_group", "last_step", "retired_step")
        training = sum(group.startswith(b"train/") for group in ready)
        return Counts(
            **{name: int(counters.get(name.encode(), 0)) for name in named},
            # A ticket is in its stream, or failed, exactly while it is outstanding, and there may be many thousands.
            outstanding_tickets=waiting + sum(ticket.startswith(b"train/") for ticket in failed),
            ready_groups=training,
            ready_eval=len(ready) - training,
        )

    def drops(self) -> list[Drop]:
        """Returns the drops since the newest manifest, in order. The next manifest takes them."""
        (waiting,) = self.read(("LRANGE", "drops", 0, -1))
        return [decode_drop(drop) for drop in waiting]

    def ready(self, kind: TicketKind) -> list[str]:
        """Returns the finished groups, in order of issue."""
        (names,) = self.read(("ZRANGE", "ready", 0, -1))
        return [name.decode() for name in names if name.startswith(kind.encode() + b"/")]

    def supply(self) -> Supply:
        """Returns the training groups at one moment. Two reads would miss a group that finishes in between."""
        ready, unfinished, counters = self.read(
            ("ZRANGE", "ready", 0, -1), ("ZRANGE", "groups", 0, -1), ("HMGET", "counters", "trained", "dropped"))
        trained, dropped = (int(value or 0) for value in counters)
        training = [[name.decode() for name in names if name.startswith(b"train/")] for names in (ready, unfinished)]
        return Supply(ready=training[0], unfinished=training[1], trained=trained, dropped=dropped)

    def outstanding_groups(self) -> list[str]:
        """Returns the unfinished groups of both kinds, in order of issue."""
        (names,) = self.read(("ZRANGE", "groups", 0, -1))
        return [name.decode() for name in names]

    def episodes(self, group: str) -> list[Episode]:
        """Returns the finished episodes of a group, ordered by k: all if it is ready, until it is retired.

        Episodes whose body is lost are left out, and their tickets are played again unless a manifest has the group.
        """
        finished: list[Episode] = []
        for start in range(0, _LARGEST_GROUP, _PAGE):
            ids = [Ticket.id_of(group, k) for k in range(start, start + _PAGE)]
            blobs, entries = self.read(("HMGET", "episodes", *ids), ("HMGET", "outstanding", *ids))
            for found in self.bodies.read([blob for blob in blobs if blob]):
                if isinstance(found, Episode):
                    finished.append(found)
                else:
                    self._play_again(found)
            if not (blobs[-1] or entries[-1]):
                break
        return finished

    def committed(self, manifest: Manifest) -> list[list[Episode]]:
        """Returns the episodes of each group of a manifest. Raises StoreFault if one of them is lost."""
        groups = [self.episodes(group) for group in manifest.groups]
        for group, episodes in zip(manifest.groups, groups, strict=True):
            if not whole(episodes):
                raise StoreFault(f"{len(episodes)} episodes of {group} can be read; the log names the lost ones")
        return groups

    def _play_again(self, lost: Lost) -> None:
        ticket = lost.ticket
        packed, cause = msgspec.msgpack.encode(ticket), f"{ticket.task}\n{lost.reason}"
        back = self.script("play_again", ticket.id, ticket.group, lost.held, packed, cause)
        then = {1: "its ticket goes back", 0: "its ticket is back already", -1: "a manifest has its group"}[back]
        log.warning("an episode is lost", ticket=ticket.id, reason=lost.reason, then=then)

    def sweep(self) -> int:
        """Deletes the bodies of episodes outside Redis that nobody refers to any more. Returns their number."""
        def in_use() -> tuple[list[bytes], dict[str, str]]:
            held, entries = self.read(("HVALS", "episodes"), ("HGETALL", "outstanding"))
            return held, {ticket.decode(): entry.decode() for ticket, entry in entries.items()}

        return self.bodies.sweep(in_use)

    def erase(self) -> None:
        """Deletes every key of this run, and its bodies. Use it only for runs that will not be resumed."""
        super().erase()
        self.sweep()

    def task_of(self, group: str) -> str:
        """Returns the task of a group, also if no episode of it is finished; "" for an unknown group."""
        first = self._first_ticket(group)
        return first.task if isinstance(first, Ticket) else first

    def to_drop(self, reasons: Mapping[str, str]) -> dict[Drop, list[Episode]]:
        """Returns the drops of groups, with their finished episodes for the archive. `reasons`: group -> why."""
        found: dict[Drop, list[Episode]] = {}
        for group, reason in reasons.items():
            episodes = self.episodes(group)
            found[Drop.of(episodes, group=group, task=self.task_of(group), reason=reason)] = episodes
        return found

    def needs(self, group: str) -> int:
        """Returns the step of the oldest weights that may play a group; -1 if it is unknown or out of attempts."""
        first = self._first_ticket(group)
        return first.min_step if isinstance(first, Ticket) else -1

    def _first_ticket(self, group: str) -> Ticket | str:
        """Returns the ticket of a group's first member, its task if it is out of attempts, or "" if it is unknown."""
        first = f"{group}#0"
        blob, failed, entry = self.read(
            ("HGET", "episodes", first), ("HGET", "failed", first), ("HGET", "outstanding", first))
        if blob:
            return self.bodies.ticket(blob)
        if failed:
            return failed.decode().partition("\n")[0]
        if not entry:
            return ""
        stream = "evals" if group.startswith("eval/") else "tickets"
        (found,) = self.read(("XRANGE", stream, entry, entry))
        # Not found: since the first read its episode was committed, its attempts ran out, or the group was dropped.
        return _tickets.decode(found[0][1][b"ticket"]) if found else self._first_ticket(group)

    def begin_step(self, lease: Lease, manifest: Manifest) -> Manifest:
        """Commits to a step before its optimizer update: its groups leave the ready list and count as trained.

        `manifest` must have no drops: the result has all drops since the previous manifest. If the step already has a
        manifest, that one is returned and must be replayed exactly. Raises NotReady if a group was dropped meanwhile.
        """
        if manifest.drops or not manifest.groups or len(set(manifest.groups)) < len(manifest.groups):
            raise ValueError("begin_step takes distinct groups, at least one, and adds the drops itself")
        if not all(group.startswith("train/") for group in manifest.groups):
            raise ValueError("begin_step takes training groups only")
        head = msgspec.json.encode(manifest).removesuffix(b"]}")
        written = self.script("begin_step", *lease.fence, manifest.step, head, *manifest.groups, role=lease.role)
        return _manifest(manifest.step, written)

    def journal(self) -> Journal:
        """Returns the whole log at one moment, for an audit. Raises DamagedManifest."""
        issued, manifests, drops, ready, unfinished = self.read(
            ("HGET", "counters", "next_group"), ("HGETALL", "manifests"), ("LRANGE", "drops", 0, -1),
            ("ZRANGE", "ready", 0, -1), ("ZRANGE", "groups", 0, -1))
        return Journal(
            issued=int(issued or 0), manifests={int(step): _manifest(int(step), text) for step, text in
                                                manifests.items()},
            drops=[decode_drop(drop) for drop in drops],
            in_flight=[name.decode() for name in (*ready, *unfinished) if name.startswith(b"train/")])

    def attempt(self, lease: Lease, step: int, incarnation: int) -> tuple[int, str]:
        """Counts an attempt to train a manifest, once per incarnation. Call it before the attempt.

        Returns how many earlier attempts failed, and the last error that one of them reported ("" if none did).
        """
        failed, cause = self.script("attempt", *lease.fence, step, incarnation, role=lease.role)
        return int(failed), cause.decode()

    def attempt_failed(self, lease: Lease, step: int, cause: str) -> None:
        """Records the error that ended an attempt."""
        self.script("attempt_ended", *lease.fence, step, cause, role=lease.role)

    def attempt_succeeded(self, lease: Lease, step: int) -> None:
        """Records that the manifest is trained. If it is replayed, its attempts are counted from zero."""
        self.script("attempt_ended", *lease.fence, step, role=lease.role)

    def skip_step(self, lease: Lease, manifest: Manifest, drops: Sequence[Drop], *, groups: int | None = None) -> None:
        """Withdraws the newest manifest and drops its groups. The step will train on other groups.

        `drops`: one for each group of the manifest. `groups`: their number, if the manifest may lack some. Raises
        StoreFault if it is not the newest manifest, or if its episodes are retired.
        """
        if [drop.group for drop in drops] != manifest.groups:
            raise ValueError(f"skip_step takes one drop for each group of step {manifest.step}, in order")
        records = [msgspec.json.encode(drop) for drop in (*manifest.drops, *drops)]
        self.script("skip_step", *lease.fence, manifest.step, len(drops) if groups is None else groups, len(drops),
                    *records, role=lease.role)

    def manifests(self, after_step: int) -> list[Manifest]:
        """Returns the manifests of the steps after `after_step`, in order. Raises DamagedManifest."""
        last = self.counts().last_step
        if last <= after_step:
            return []
        steps = range(after_step + 1, last + 1)
        (texts,) = self.read(("HMGET", "manifests", *steps))
        return [_manifest(step, text) for step, text in zip(steps, texts, strict=True) if text]

    def manifest(self, step: int) -> Manifest | None:
        """Returns the manifest of a step, or None if it has none. Raises DamagedManifest."""
        (text,) = self.read(("HGET", "manifests", step))
        return _manifest(step, text) if text else None

    def unclaimed(self) -> list[str]:
        """Returns the training groups with episodes that are in no queue and in no manifest that can be read, in order
        of issue: those of damaged manifests."""
        ids, ready, unfinished, last = self.read(
            ("HKEYS", "episodes"), ("ZRANGE", "ready", 0, -1), ("ZRANGE", "groups", 0, -1),
            ("HMGET", "counters", "retired_step", "last_step"))
        taken = {name.decode() for name in (*ready, *unfinished)}
        retired, newest = (int(step or 0) for step in last)
        for step in range(retired + 1, newest + 1):
            with suppress(DamagedManifest):
                manifest = self.manifest(step)
                taken.update(manifest.groups if manifest else ())
        held = {name.decode().partition("#")[0] for name in ids if name.startswith(b"train/")}
        return sorted(held - taken)

    def retire(self, lease: Lease, step: int) -> int:
        """Deletes the episodes of all manifests up to `step`. Returns the bytes freed.

        Call it only after the checkpoint of `step` and the archive are durable. Earlier steps cannot be replayed then.
        """
        return int(self.script("retire", *lease.fence, step, role=lease.role))

    def retained_bytes(self) -> int:
        """Returns the bytes of all episodes held."""
        (held,) = self.read(("HGET", "counters", "bytes"))
        return int(held or 0)

    def crowded(self) -> bool:
        """Whether so many episodes are held that the learner makes a checkpoint early, so that it can retire some.

        Redis refuses every write once it is full, also those that a checkpoint needs, so half of its memory is kept.
        Once other runs have filled that half, this one keeps a sixteenth, so that it need not retire every step.
        """
        held, about = self.retained_bytes(), self.patiently("info", lambda: self.redis.info("memory"))
        limit = int(about.get("maxmemory", 0)) or 2 * RETAINED_BYTES  # 0: no limit, or a managed Redis hides it
        half_full = int(about.get("used_memory", 0)) > limit // 2
        return held > min(RETAINED_BYTES, limit // (16 if half_full else 2))

    def agrees_with(self, step: int) -> bool:
        """Whether a run can continue from the checkpoint of `step`: all later manifests are here with their episodes.

        If it cannot (Redis was emptied, lost its last writes, or an older checkpoint was chosen), call reset_to.
        """
        counts = self.counts()
        return counts.retired_step <= step <= counts.last_step

    def reset_to(self, lease: Lease, step: int, next_group: int, *, trained: int | None = None) -> None:
        """Resets the store to a checkpoint: forgets all unfinished work and continues after `step` with `next_group`.

        `trained`: number of groups that the checkpoint was trained on; the others before `next_group` count as
        dropped. None: all before `next_group` were trained on.
        """
        done = next_group if trained is None else trained
        if not 0 <= done <= next_group:
            raise ValueError(f"{done} groups trained of {next_group} issued")
        self.script("reset", *lease.fence, step, next_group, done, role=lease.role)
