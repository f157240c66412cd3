"""Tickets, episodes and groups in Redis: each group is trained on exactly once, or dropped with a reason.

A ticket, from begin to end. Each line is one call, which runs the script of the same name (fail: give_back,
steps.begin: begin_step, steps.retire: retire):

    issue            the controller issues the tickets of a group: they wait in a stream and are outstanding
    claim            a worker takes a ticket. If it dies, another one claims the ticket after 30 s: the next attempt
    renew_claims     the worker still plays it
    keep_turns       its finished turns are stored, so that the next attempt continues after them
    fail             the attempt failed: the ticket waits again; after the third time its group is to be dropped
    commit_episode   the first episode of a ticket counts: it is no longer outstanding, and no longer in the stream
                     The last episode of a group makes the group ready
    steps.begin      the learner takes ready groups into the manifest of a step, before it trains on them
    steps.retire     the checkpoint of that step is durable: the episodes are deleted. The manifest stays
    drop             instead, at any time before a manifest: the group is deleted, the next manifest has the reason
    play_again       the body of an episode is lost: its ticket waits again, unless a manifest has the group
    reissue          the run is resumed: tickets that wait or are claimed get new entries, and attempts from one

| key          | holds                                                     | from, to                        |
|--------------|-----------------------------------------------------------|---------------------------------|
| tickets      | stream, group `workers`: one entry per training ticket    | issue, commit or drop           |
| evals        | the same of evaluation tickets                            | issue, commit or drop           |
| outstanding  | ticket id -> its entry; no other ticket can be committed  | issue, commit or drop           |
| groups       | unfinished groups, scored by order of issue               | issue, the last commit or drop  |
| ready        | finished groups, scored by order of issue                 | the last commit, manifest       |
| turns:<id>   | index -> finished turn of a ticket that is being played   | keep_turns, commit, drop, fail  |
| episodes     | ticket id -> body of the episode, or a reference to it    | commit, retire or drop          |
| manifests    | step -> manifest as JSON                                  | begin, for good                 |
| drops        | drops that no manifest has taken yet                      | drop, begin                     |
| failed       | ticket id -> task, and why its attempts are used up       | last failure, drop or commit    |
| lost         | ticket id -> how often its episode's body was lost        | play_again, retire or drop      |
| claims       | worker -> name and answer of its last claim               | claim, its next claim           |
| attempts     | step -> incarnation, attempts to train it; step:cause     | attempt, attempt_ended          |
| counters     | issued, dropped, last_step, bytes, version, clock, ...    |                                 |
| lease:<role> | epoch, holder, expires, released                          |                                 |
| beats        | process -> when its heartbeat expires, the heartbeat      | beat, its expiry                |

Invariants, which a model test checks: issued - dropped - trained = unfinished + ready training groups; a ticket is in
its stream, or failed, exactly while it is outstanding; a ticket's number of attempts is the number of deliveries of its
entry; only outstanding tickets have turns.
All calls block: in asyncio, use asyncio.to_thread.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from services.config.redis import RedisSection
from services.config.tree import Config
from services.errors import EnvFault, StoreFault
from services.records import (
    Drop,
    Episode,
    Manifest,
    PlayedTurn,
    Ticket,
    TicketKind,
    Verdict,
    Version,
    decode_turn,
    encode_turn,
)
from services.store.bodies import Bodies, Lost
from services.store.connection import BRIEFLY, Connection
from services.store.lease import Lease, Leases
from services.store.run_state import RunState
from services.store.step_log import StepLog
from services.telemetry.logs import get_logger

WITHOUT_STEPS = {
    "context": "the first prompt has more tokens than rollout.max_prompt_tokens",
    **dict.fromkeys(("won", "lost", "turns"), "the game is over before the first step"),
}
"""End of an episode without steps -> why it is refused."""
PAUSE_GROWTH = 4
RETAINED_BYTES = 2 << 30
"""Most bytes of episodes that are held before a checkpoint is made early."""
_PAGE = 64
"""Number of members that are read at once. Most groups are smaller."""
_LARGEST_GROUP = 4096
_tickets = msgspec.msgpack.Decoder(Ticket)
log = get_logger("store")


class WithoutSteps(EnvFault):
    """The policy never acted in an episode. Another attempt would end in the same way."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A ticket that a worker holds. A later claim of the same ticket has another worker or a higher attempt."""

    ticket: Ticket
    attempt: int
    """Number of the attempt, from 1."""
    entry: str
    """The ticket's entry in the stream."""
    worker: str
    issued_at: float
    """When the ticket was issued, by time.monotonic() of this process."""

    def pause_s(self, first_s: float) -> float:
        """Returns the seconds until the next attempt, if this one has failed: about `first_s` after the first attempt,
        four times as long after the second. Random, so that the tickets of one fault do not all come back at once."""
        return first_s * PAUSE_GROWTH ** (self.attempt - 1) * random.uniform(0.75, 1.25)


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """The unplayed tickets. It is read by several calls, so the numbers may be of different moments."""

    waiting: int
    """Number of tickets that no worker has claimed."""
    claimed: int
    oldest_s: float
    """Age of the oldest ticket in seconds, by Redis' clock; 0 if there is none."""
    retained_bytes: int
    """Bytes of all episodes held."""


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Training groups and steps so far, over all restarts."""

    issued: int
    dropped: int
    trained: int
    """Number of groups in manifests. steps.begin adds to it and so frees capacity."""
    outstanding_tickets: int
    ready_groups: int
    ready_eval: int
    next_group: int
    """Number of the next training group."""
    last_step: int
    """Step of the newest manifest."""
    retired_step: int
    """Newest step whose episodes are deleted."""


class Supply(msgspec.Struct, frozen=True, kw_only=True):
    """The training groups at one moment."""

    ready: list[str]
    """Finished groups that no manifest has taken, in order of issue."""
    unfinished: list[str]
    """Unfinished groups, in order of issue."""
    trained: int
    dropped: int


def is_complete(episodes: Sequence[Episode]) -> bool:
    """Returns whether these are all episodes of their group."""
    return bool(episodes) and len(episodes) == episodes[0].ticket.size


def _drop(episodes: Sequence[Episode], *, group: str, task: str, reason: str) -> Drop:
    """Returns the drop of a group with these finished episodes."""
    task_type = episodes[0].ticket.task_type if episodes else ""
    return Drop.of(episodes, group=group, task=task, task_type=task_type, reason=reason)


class Store:
    """One run's work in Redis: its tickets, groups and episodes. `steps` has the log of the learner's steps, `state`
    the newest weights, the servers and the heartbeats, `leases` the roles of its processes.

    A call that makes one round trip, as a worker's do, ends within `longest_s`. Calls raise StoreFault if Redis is down
    for longer than `settings.outage_seconds`, or its disk full for longer than that and `disk_s`. They raise LeaseLost
    if the lease that is passed in is not the current one.
    """

    def __init__(self, url: str, run: str, *, timeout_s: float = 10.0, settings: RedisSection = BRIEFLY,
                 disk_s: float = 0.0) -> None:
        self.connection = Connection(url, run, timeout_s, settings, disk_s=disk_s)
        self.bodies = Bodies(settings.bodies, run, settings.outage_seconds)
        self.leases = Leases(self.connection)
        self.steps = StepLog(self.connection)
        self.state = RunState(self.connection)
        self.longest_s = self.connection.longest_s + self.bodies.longest_s
        self._known_workers: set[str] = set()

    @classmethod
    def of_run(cls, config: Config, url: str, run: str) -> Store:
        """Returns the store of a process of a run. A private Redis keeps its data in the run's folder, so calls wait
        for that disk for as long as learner.collective_s."""
        return cls(url, run, settings=config.redis, disk_s=0.0 if config.redis.url else config.learner.collective_s)

    def erase(self) -> None:
        """Deletes every key of this run, and its bodies. Use it only for runs that will not be resumed."""
        self.connection.erase()
        self.sweep()

    # The controller issues a group

    def issue(self, lease: Lease, tickets: Sequence[Ticket], *, capacity: int) -> bool:
        """Issues all tickets of a group. Returns False if issued - dropped has reached `capacity` (evaluation is not
        counted).

        Training groups are `train/<number>`, numbered without gaps. A group that was issued before is not changed, and
        the result is True. An evaluation group is remembered only until it is retired or dropped.
        """
        first = tickets[0]
        if [t.k for t in tickets] != list(range(first.size)) or len({(t.group, t.kind) for t in tickets}) > 1:
            raise ValueError(f"{first.group}: issue takes the members 0..{first.size - 1} of one group, in order")
        kind, _, rest = first.group.partition("/")
        if kind != first.kind or (kind == "train" and not rest.isdecimal()):
            raise ValueError(f"group id {first.group!r} is neither train/<number> nor eval/...")
        number = int(rest) if kind == "train" else 0
        packed = [msgspec.msgpack.encode(ticket) for ticket in tickets]
        return bool(self.connection.fenced("issue", lease, capacity, kind, first.group, number, *packed))

    def reissue(self, lease: Lease) -> int:
        """Gives unplayed tickets of a resumed run fresh attempts and voids earlier claims. Returns their number.

        An interruption is not a failure of a game. Without this, the fourth interruption within a step would drop its
        groups.
        """
        return int(self.connection.fenced("reissue", lease))

    # A worker plays its tickets

    def claim(self, worker: str, count: int, *, own: Version | None = None, train: bool = True,
              min_idle_s: float = 30.0) -> list[Claim]:
        """Claims up to `count` tickets without waiting: first those given back or idle for min_idle_s, then new ones.

        `own`: the version that the worker holds. Training tickets that it may not sample now stay in the stream;
        without `train`, all training tickets do. The first claim of a process gives back all tickets held under its
        name. A call that is repeated after a lost reply is answered the same, and costs no attempt.
        """
        fresh = worker not in self._known_workers
        limits = [] if own is None and train else [own.incarnation if own else 0, own.step if own and train else -1]
        name = uuid.uuid4().hex
        replies = self.connection.script("claim", worker, count, int(min_idle_s * 1000), int(fresh), name, *limits)
        self._known_workers.add(worker)
        return [Claim(ticket=_tickets.decode(packed), attempt=attempt, entry=entry.decode(), worker=worker,
                      issued_at=time.monotonic() - age / 1000) for entry, packed, attempt, age in replies]

    def renew_claims(self, worker: str, claims: Sequence[Claim]) -> list[Claim]:
        """Renews claims, so that they do not go idle. Call it every 5 s. Returns lost claims, which must be stopped."""
        if not claims:
            return []
        held = [part for claim in claims for part in (claim.ticket.id, claim.entry, claim.attempt)]
        return [claims[position] for position in self.connection.script("renew_claims", worker, *held)]

    def keep_turns(self, worker: str, turns: Sequence[tuple[Claim, int, PlayedTurn]]) -> None:
        """Stores finished turns (claim, index, turn) until their ticket is committed, dropped or failed.

        Turns of lost claims are left out, and so are turns whose predecessor is not stored.
        """
        parts = [part for claim, index, turn in turns
                 for part in (claim.ticket.id, claim.entry, claim.attempt, index, encode_turn(turn))]
        self.connection.script("keep_turns", worker, *parts)

    def turns(self, ticket: str) -> list[PlayedTurn]:
        """Returns the finished turns of a ticket that an earlier worker stored, in order from the first one."""
        (turns,) = self.connection.read(("HGETALL", f"turns:{ticket}"))
        return [decode_turn(turns[b"%d" % index]) for index in range(len(turns))]

    def fail(self, claim: Claim, reason: str, pause_s: float = 0.0) -> Literal["retry", "exhausted"]:
        """Records a fault that ended the episode. Any worker may claim the ticket again once `pause_s` seconds have
        passed, up to three attempts."""
        # The error of an agent may hold half of a surrogate pair, which is no UTF-8.
        ticket, cause = claim.ticket, f"{claim.ticket.task}\n{reason}".encode(errors="replace")
        used_up = self.connection.script("give_back", ticket.id, claim.entry, claim.worker, claim.attempt, cause,
                                         int(pause_s * 1000))
        return "exhausted" if used_up else "retry"

    def commit_episode(self, claim: Claim, episode: Episode) -> Verdict:
        """Stores the episode if its ticket is outstanding, also if another worker claims it now: the first writer wins.

        Raises WithoutSteps for an episode without steps: nothing can be learned from it, and an evaluation does not
        count it as lost.
        """
        if episode.ticket != claim.ticket:
            raise ValueError(f"an episode of {episode.ticket.id} cannot answer {claim.ticket.id}")
        if not episode.steps:
            raise WithoutSteps(WITHOUT_STEPS[episode.end])
        ticket, held = claim.ticket, self.bodies.keep(claim.ticket, claim.entry, episode)
        accepted = self.connection.script("commit_episode", ticket.id, claim.entry, ticket.group, ticket.size, held)
        return "accepted" if accepted else "refused"

    # The learner and the controller read finished groups

    def ready(self, kind: TicketKind) -> list[str]:
        """Returns the finished groups, in order of issue."""
        (names,) = self.connection.read(("ZRANGE", "ready", 0, -1))
        return [name.decode() for name in names if name.startswith(kind.encode() + b"/")]

    def supply(self) -> Supply:
        """Returns the training groups at one moment. Two reads would miss a group that finishes in between."""
        ready, unfinished, counters = self.connection.read(
            ("ZRANGE", "ready", 0, -1), ("ZRANGE", "groups", 0, -1), ("HMGET", "counters", "trained", "dropped"))
        trained, dropped = (int(value or 0) for value in counters)
        training = [[name.decode() for name in names if name.startswith(b"train/")] for names in (ready, unfinished)]
        return Supply(ready=training[0], unfinished=training[1], trained=trained, dropped=dropped)

    def episodes(self, group: str) -> list[Episode]:
        """Returns the finished episodes of a group, ordered by k: all if it is ready, until it is retired.

        Episodes whose body is lost are left out, and their tickets are played again unless a manifest has the group.
        """
        finished: list[Episode] = []
        for start in range(0, _LARGEST_GROUP, _PAGE):
            ids = [Ticket.id_of(group, k) for k in range(start, start + _PAGE)]
            blobs, entries = self.connection.read(("HMGET", "episodes", *ids), ("HMGET", "outstanding", *ids))
            for episode in self.bodies.read([blob for blob in blobs if blob]):
                if isinstance(episode, Lost):
                    self._play_again(episode)
                else:
                    finished.append(episode)
            if not (blobs[-1] or entries[-1]):
                break
        return finished

    def _play_again(self, lost: Lost) -> None:
        ticket = lost.ticket
        packed, cause = msgspec.msgpack.encode(ticket), f"{ticket.task}\n{lost.reason}"
        back = self.connection.script("play_again", ticket.id, ticket.group, lost.held, packed, cause)
        then = {1: "its ticket goes back", 0: "its ticket is back already", -1: "a manifest has its group"}[back]
        log.warning("an episode is lost", ticket=ticket.id, reason=lost.reason, then=then)

    def committed(self, manifest: Manifest) -> list[list[Episode]]:
        """Returns the episodes of each group of a manifest. Raises StoreFault if one of them is lost."""
        groups = [self.episodes(group) for group in manifest.groups]
        for group, episodes in zip(manifest.groups, groups, strict=True):
            if not is_complete(episodes):
                raise StoreFault(f"{len(episodes)} episodes of {group} can be read; the log names the lost ones")
        return groups

    def retire_eval(self, lease: Lease, groups: Sequence[str]) -> int:
        """Deletes ready evaluation groups that were read. Returns the bytes freed."""
        if not all(group.startswith("eval/") for group in groups):
            raise ValueError("retire_eval takes evaluation groups only")
        return int(self.connection.fenced("retire_eval", lease, *groups))

    def sweep(self) -> int:
        """Deletes the bodies of episodes outside Redis that nobody refers to any more. Returns their number."""
        def in_use() -> tuple[list[bytes], dict[str, str]]:
            held, entries = self.connection.read(("HVALS", "episodes"), ("HGETALL", "outstanding"))
            return held, {ticket.decode(): entry.decode() for ticket, entry in entries.items()}

        return self.bodies.sweep(in_use)

    # Groups that are dropped

    def failed_groups(self) -> list[Drop]:
        """Returns a drop for each group with a ticket whose attempts are used up."""
        (failed,) = self.connection.read(("HGETALL", "failed"))
        causes = {name.decode().rpartition("#")[0]: cause.decode().partition("\n")
                  for name, cause in sorted(failed.items())}
        return [_drop(self.episodes(group), group=group, task=task, reason=reason)
                for group, (task, _, reason) in causes.items()]

    def to_drop(self, reasons: Mapping[str, str]) -> dict[Drop, list[Episode]]:
        """Returns the drops of groups, with their finished episodes for the archive. `reasons`: group -> why."""
        drops: dict[Drop, list[Episode]] = {}
        for group, reason in reasons.items():
            episodes = self.episodes(group)
            drops[_drop(episodes, group=group, task=self.task_of(group), reason=reason)] = episodes
        return drops

    def drop(self, lease: Lease, *drops: Drop) -> bool:
        """Removes unfinished or ready groups at once and frees their capacity. A group that is unknown or in a manifest
        stays as it is, and then the result is False.

        Read episodes() first if the archive should get the finished ones. The learner may drop too, with its own lease.
        """
        parts = [part for drop in drops
                 for part in (drop.group, drop.group.partition("/")[0], msgspec.json.encode(drop))]
        return bool(self.connection.fenced("drop", lease, *parts))

    def drops(self) -> list[Drop]:
        """Returns the drops since the newest manifest, in order. The next manifest takes them."""
        (waiting,) = self.connection.read(("LRANGE", "drops", 0, -1))
        return [msgspec.json.decode(drop, type=Drop) for drop in waiting]

    # Counts, and what is known of a group

    def counts(self) -> Counts:
        """Returns all counts at one moment."""
        counters, waiting, failed, ready = self.connection.read(
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

    def backlog(self) -> Backlog:
        """Returns how much work waits, and for how long."""
        waiting, claimed, oldest = 0, 0, float("inf")
        for stream in ("tickets", "evals"):
            depth, first = self.connection.read(("XLEN", stream), ("XRANGE", stream, "-", "+", "COUNT", 1))
            if first:  # before the first issue there is no consumer group to ask for
                (pending,) = self.connection.read(("XPENDING", stream, "workers"))
                held = min(int(pending["pending"]), depth)
                waiting, claimed = waiting + depth - held, claimed + held
                oldest = min(oldest, int(first[0][0].split(b"-")[0]) / 1000)
        seconds, microseconds = self.connection.retry("time", self.connection.redis.time)
        return Backlog(waiting=waiting, claimed=claimed, retained_bytes=self.retained_bytes(),
                       oldest_s=max(0.0, seconds + microseconds / 1e6 - oldest))

    def retained_bytes(self) -> int:
        """Returns the bytes of all episodes held."""
        (held,) = self.connection.read(("HGET", "counters", "bytes"))
        return int(held or 0)

    def crowded(self) -> bool:
        """Whether so many episodes are held that the learner makes a checkpoint early, so that it can retire some.

        Redis refuses every write once it is full, also those that a checkpoint needs, so half of its memory stays free.
        Once other runs have filled half, this one holds up to a sixteenth, so that it need not retire every step.
        """
        held, connection = self.retained_bytes(), self.connection
        about = connection.retry("info", lambda: connection.redis.info("memory"))
        limit = int(about.get("maxmemory", 0)) or 2 * RETAINED_BYTES  # 0: no limit, or a managed Redis hides it
        half_full = int(about.get("used_memory", 0)) > limit // 2
        return held > min(RETAINED_BYTES, limit // (16 if half_full else 2))

    def outstanding_groups(self) -> list[str]:
        """Returns the unfinished groups of both kinds, in order of issue."""
        (names,) = self.connection.read(("ZRANGE", "groups", 0, -1))
        return [name.decode() for name in names]

    def task_of(self, group: str) -> str:
        """Returns the task of a group, also if no episode of it is finished; "" for an unknown group."""
        first = self._first_ticket(group)
        return first.task if isinstance(first, Ticket) else first

    def needs(self, group: str) -> int:
        """Returns the step of the oldest weights that may play a group; -1 if it is unknown or out of attempts."""
        first = self._first_ticket(group)
        return first.min_step if isinstance(first, Ticket) else -1

    def _first_ticket(self, group: str) -> Ticket | str:
        """Returns the ticket of a group's first member, its task if it is out of attempts, or "" if it is unknown."""
        first = f"{group}#0"
        blob, failed, entry = self.connection.read(
            ("HGET", "episodes", first), ("HGET", "failed", first), ("HGET", "outstanding", first))
        if blob:
            return self.bodies.ticket(blob)
        if failed:
            return failed.decode().partition("\n")[0]
        if not entry:
            return ""
        stream = "evals" if group.startswith("eval/") else "tickets"
        (entries,) = self.connection.read(("XRANGE", stream, entry, entry))
        # None: since the first read its episode was committed, its attempts ran out, or the group was dropped.
        return _tickets.decode(entries[0][1][b"ticket"]) if entries else self._first_ticket(group)
