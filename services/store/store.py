"""Tickets, episodes and groups in Redis: each group is trained on exactly once, or dropped with a reason.

    issue ──▶ outstanding ──commit_episode (the last member)──▶ ready ──begin_step──▶ in a manifest ──retire──▶ gone
                   └────────────────── drop ──────────────────────┴──▶ gone, the reason goes into the next manifest

| key          | holds                                                     | from, to                        |
|--------------|-----------------------------------------------------------|---------------------------------|
| tickets      | stream, group `workers`: one entry per training ticket    | issue, commit or drop           |
| evals        | the same of evaluation tickets                            | issue, commit or drop           |
| outstanding  | ticket id -> its entry in the stream                      | issue, commit or drop           |
| groups       | unfinished groups, scored by order of issue               | issue, the last commit or drop  |
| ready        | finished groups, scored by order of issue                 | the last commit, manifest       |
| turns:<id>   | index -> finished turn of a ticket that is being played   | keep_turns, commit, drop, fail  |
| episodes     | ticket id -> body of the episode, or a reference to it    | commit, retire or drop          |
| manifests    | step -> manifest as JSON                                  | begin_step, for good            |
| drops        | drops that no manifest has taken yet                      | drop, begin_step                |
| failed       | ticket id -> task, and why its attempts are used up       | fail or claim, drop or commit   |
| lost         | ticket id -> how often its episode's body was lost        | play_again, retire or drop      |
| claims       | worker -> name and answer of its last claim               | claim, its next claim           |
| attempts     | step -> incarnation, attempts to train it; step:cause     | attempt, attempt_ended          |
| counters     | issued, dropped, trained, next_group, last_step, ...      |                                 |
| lease:<role> | epoch, holder, expires, released                          |                                 |

Invariants, which a model test checks: issued - dropped - trained = unfinished + ready training groups; a ticket is in
its stream, or failed, exactly while it is outstanding; a ticket's number of attempts is the number of deliveries of its
entry; only outstanding tickets have turns.
All calls block: in asyncio, use asyncio.to_thread.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Sequence
from typing import Literal

import msgspec

from services.config.redis import RedisSection
from services.config.tree import Config
from services.errors import EnvFault
from services.records import (
    Drop,
    Episode,
    PlayedTurn,
    Ticket,
    Verdict,
    Version,
    decode_turn,
    encode_turn,
)
from services.store import lease as leases
from services.store.connection import BRIEFLY
from services.store.lease import Lease
from services.store.step_log import StepLog
from services.telemetry.overhead import counted

WITHOUT_STEPS = {
    "context": "the first prompt has more tokens than rollout.max_prompt_tokens",
    **dict.fromkeys(("won", "lost", "turns"), "the game is over before the first step"),
}
"""End of an episode without steps -> why it is refused."""
PAUSE_GROWTH = 4
_tickets = msgspec.msgpack.Decoder(Ticket)


class WithoutSteps(EnvFault):
    """The policy never acted in an episode. Another attempt would end like it, whenever it is made."""


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


class Store(StepLog):
    """One run's work in Redis. RunState adds the version pointer and the heartbeats.

    Every call answers within `longest_s`. Calls raise StoreFault if Redis is down for longer than
    `settings.outage_seconds`, or its disk full for longer than that and `disk_s`. They raise LeaseLost if the lease
    that is passed in is not the current one.
    """

    def __init__(self, url: str, run: str, *, timeout_s: float = 10.0, settings: RedisSection = BRIEFLY,
                 disk_s: float = 0.0) -> None:
        super().__init__(url, run, timeout_s, settings, disk_s=disk_s)
        self._known_workers: set[str] = set()

    @classmethod
    def of_run(cls, config: Config, url: str, run: str) -> Store:
        """Returns the store of a process of a run. The data of a private Redis are on the disk of the run's folder,
        which all wait for as long as learner.collective_s."""
        return cls(url, run, settings=config.redis, disk_s=0.0 if config.redis.url else config.learner.collective_s)

    def acquire(self, role: str, holder: str, ttl_s: float = 15.0) -> Lease:
        """Takes a role, at once if `holder` already has it. Raises LeaseHeld while another living holder has it."""
        return leases.acquire(self, role, holder, ttl_s)

    def renew(self, lease: Lease) -> None:
        """Extends a lease by its time to live. Call it three times within that time."""
        leases.renew(self, lease)

    def release(self, lease: Lease) -> None:
        """Gives a role up."""
        leases.release(self, lease)

    # Controller

    def issue(self, lease: Lease, tickets: Sequence[Ticket], *, capacity: int) -> bool:
        """Issues one whole group. Returns False if issued - dropped has reached `capacity` (evaluation is not counted).

        Training groups are `train/<number>`, numbered without gaps. A group that was issued before is not changed, and
        the result is True. An evaluation group is remembered only until it is retired or dropped.
        """
        first = tickets[0]
        if [t.k for t in tickets] != list(range(first.size)) or {(t.group, t.kind) for t in tickets} != {
            (first.group, first.kind)
        }:
            raise ValueError(f"{first.group}: issue takes the members 0..{first.size - 1} of one group, in order")
        kind, _, rest = first.group.partition("/")
        if kind != first.kind or (kind == "train" and not rest.isdecimal()):
            raise ValueError(f"group id {first.group!r} is neither train/<number> nor eval/...")
        number = int(rest) if kind == "train" else 0
        packed = [msgspec.msgpack.encode(ticket) for ticket in tickets]
        return bool(self.script("issue", *lease.fence, capacity, kind, first.group, number, *packed, role=lease.role))

    def drop(self, lease: Lease, *drops: Drop) -> bool:
        """Removes unfinished or ready groups at once and frees their capacity. Returns False if one is unknown or in a
        manifest, and stays.

        Read episodes() first if the archive should get the finished ones. The learner may drop too, with its own lease.
        """
        parts = [part for drop in drops
                 for part in (drop.group, drop.group.partition("/")[0], msgspec.json.encode(drop))]
        return bool(self.script("drop", *lease.fence, *parts, role=lease.role))

    def reissue(self, lease: Lease) -> int:
        """Gives unplayed tickets of a resumed run fresh attempts and voids earlier claims. Returns their number.

        An interruption is not a failure of a game. Without this, the fourth interruption within a step would drop its
        groups.
        """
        return int(self.script("reissue", *lease.fence, role=lease.role))

    def failed_groups(self) -> list[Drop]:
        """Returns a drop for each group with a ticket whose attempts are used up."""
        (failed,) = self.read(("HGETALL", "failed"))
        causes = {name.decode().rpartition("#")[0]: cause.decode() for name, cause in sorted(failed.items())}
        drops: list[Drop] = []
        for group, cause in causes.items():
            task, _, reason = cause.partition("\n")
            drops.append(Drop.of(self.episodes(group), group=group, task=task, reason=reason))
        return drops

    # Rollout worker

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
        replies = self.script("claim", worker, count, int(min_idle_s * 1000), int(fresh), name, *limits)
        self._known_workers.add(worker)
        return [
            Claim(ticket=_tickets.decode(packed), attempt=attempt, entry=entry.decode(), worker=worker,
                  issued_at=time.monotonic() - age / 1000)
            for entry, packed, attempt, age in replies
        ]

    def renew_claims(self, worker: str, claims: Sequence[Claim]) -> list[Claim]:
        """Renews claims, so that they do not go idle. Call it every 5 s. Returns lost claims, which must be stopped."""
        if not claims:
            return []
        held = [part for claim in claims for part in (claim.ticket.id, claim.entry, claim.attempt)]
        return [claims[position] for position in self.script("renew_claims", worker, *held)]

    @counted("turns")
    def keep_turns(self, worker: str, turns: Sequence[tuple[Claim, int, PlayedTurn]]) -> None:
        """Stores finished turns (claim, index, turn) until their ticket is committed, dropped or failed.

        Turns of lost claims are left out, and so are turns whose predecessor is not stored.
        """
        parts = [part for claim, index, turn in turns
                 for part in (claim.ticket.id, claim.entry, claim.attempt, index, encode_turn(turn))]
        self.script("keep_turns", worker, *parts)

    def turns(self, ticket: str) -> list[PlayedTurn]:
        """Returns the finished turns of a ticket that an earlier worker stored, in order from the first one."""
        (found,) = self.read(("HGETALL", f"turns:{ticket}"))
        return [decode_turn(found[b"%d" % index]) for index in range(len(found))]

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
        accepted = self.script("commit_episode", ticket.id, claim.entry, ticket.group, ticket.size, held)
        return "accepted" if accepted else "refused"

    def fail(self, claim: Claim, reason: str, pause_s: float = 0.0) -> Literal["retry", "exhausted"]:
        """Records a fault that ended the episode. Any worker may claim the ticket again once `pause_s` seconds have
        passed, up to three attempts."""
        # The error of an agent may hold half of a surrogate pair, which is no UTF-8.
        ticket, cause = claim.ticket, f"{claim.ticket.task}\n{reason}".encode(errors="replace")
        used_up = self.script("give_back", ticket.id, claim.entry, claim.worker, claim.attempt, cause,
                              int(pause_s * 1000))
        return "exhausted" if used_up else "retry"

    # Evaluation

    def retire_eval(self, lease: Lease, groups: Sequence[str]) -> int:
        """Deletes ready evaluation groups that were read. Returns the bytes freed."""
        if not all(group.startswith("eval/") for group in groups):
            raise ValueError("retire_eval takes evaluation groups only")
        return int(self.script("retire_eval", *lease.fence, *groups, role=lease.role))
