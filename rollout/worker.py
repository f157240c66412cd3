"""The rollout worker: pulls tickets into free slots, plays them side by side, and follows the published weights.

    loop     waits for                            woken by                        writes
    drive    a free slot, a ticket, a version     an episode's end, the clock     claims, its own version
    episode  the engine, the environment          their replies                   the episode, or its failure
    renew    5 s                                  the clock                       the claims it holds
    beat     2 s                                  the clock                       a metrics snapshot

The first loop that ends, ends all: the process exits and others claim its tickets. Plain asyncio, no Ray.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from structlog.contextvars import bind_contextvars

from rollout.engine import Engine
from rollout.episode import EpisodeRunner
from rollout.meter import Meter, queued
from rollout.version_policy import Missing, may_start, next_version, wanted_elsewhere
from services.config.rollout import RolloutSection
from services.errors import DeadlineExceeded, EnvFault, Fault, GagpoError, StoreFault, described
from services.records import Version
from services.store.store import Claim, Store
from services.telemetry.heartbeat import BEAT_S
from services.telemetry.logs import bind, get_logger
from services.telemetry.tracing import span
from services.weights.pack import Packed

POLL_S = 0.25
RENEW_S = 5.0
T = TypeVar("T")
log = get_logger("worker")

Fetch = Callable[[Version, str], Awaitable[Packed | None]]
"""Weights of a version, given the folder of its export ("" if unknown); None when nobody has them any more."""


class RolloutWorker:
    """One worker. Its engine must have been started; `fetch` gets weights from wherever they are published."""

    def __init__(self, name: str, *, store: Store, engine: Engine, player: EpisodeRunner, fetch: Fetch,
                 settings: RolloutSection) -> None:
        self._name = name
        self._store = store
        self._engine = engine
        self._player = player
        self._fetch = fetch
        self._slots = settings.slots
        self._update_s = settings.update_seconds
        self._playing: dict[str, tuple[Claim, asyncio.Task[None]]] = {}
        self._held: dict[str, Claim] = {}
        self._pointer: tuple[Version, str] | None = None
        self._missing = Missing()
        self._wake = asyncio.Event()
        self._meter = Meter(name, engine, slots=settings.slots)

    async def run(self) -> None:
        """Works until cancelled. Raises the Fault that ended it."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._drive(group), name="drive")
                group.create_task(self._every(RENEW_S, self._renew), name="renew")
                group.create_task(self._every(BEAT_S, self._beat), name="beat")
        except BaseExceptionGroup as failures:
            faults, others = failures.split(Fault)
            if others is None and faults is not None:
                raise _first(faults) from failures
            raise

    async def _drive(self, group: asyncio.TaskGroup) -> None:
        while True:
            self._wake.clear()
            await self._claim()
            self._start(group)
            if await self._follow():
                continue
            self._meter.waits(playing=len(self._playing), held=len(self._held), missing=self._missing.version)
            # Not wait_for: up to Python 3.11 it swallows a cancellation that meets the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._wake.wait()

    async def _claim(self) -> None:
        """Fill the free slots. Evaluation tickets of another version are held until the worker goes back for them."""
        held = [claim.ticket for claim in self._held.values()]
        room = self._slots - len(self._playing) - sum(ticket.kind == "eval" for ticket in held)
        if room > 0:
            # Training episodes must end before the worker goes back, so it begins no more of them.
            train = not (self._at_pointer() and wanted_elsewhere(self._engine.version, held))
            claims = await self._ask(self._store.claim, self._name, room, own=self._engine.version, train=train)
            self._held |= {claim.ticket.id: claim for claim in claims}
            self._meter.claimed(claims)
        # Read after the claim: whatever version a ticket was issued for is published by now.
        self._pointer = await self._ask(self._store.version)

    def _start(self, group: asyncio.TaskGroup) -> None:
        for claim in list(self._held.values()):
            if len(self._playing) < self._slots and self._may_start(claim):
                del self._held[claim.ticket.id]
                self._meter.started(claim)
                task = group.create_task(self._play(claim), name=claim.ticket.id)
                self._playing[claim.ticket.id] = claim, task

    async def _follow(self) -> bool:
        """Load the version that is due, if any; True when it was loaded or found to be gone."""
        if self._pointer is None:
            return False
        pointer, path = self._pointer
        playing = [claim.ticket for claim, _ in self._playing.values()]
        due = next_version(self._engine.version, pointer, playing, [c.ticket for c in self._held.values()])
        if due == self._engine.version or self._missing.pauses(due):
            return False
        self._meter.fetches(due)
        packed = await self._fetched(due, path if due == pointer else "")
        if packed is not None:
            self._missing.version = None
            started = time.monotonic()
            await self._engine.update(due, packed.manifest, packed.buffer)
            seconds = time.monotonic() - started
            bind(version=due.short)
            log.info("weights updated", seconds=seconds)
            self._meter.updated(seconds)
        elif due == pointer:
            log.warning("nobody has the current weights", version=due.short)
            self._missing.note(due)
            return False
        else:
            await self._refuse(due)
        return True

    async def _fetched(self, version: Version, folder: str) -> Packed | None:
        try:
            async with asyncio.timeout(self._update_s):
                return await self._fetch(version, folder)
        except TimeoutError as error:
            raise DeadlineExceeded(f"no weights of {version.short} within {self._update_s:.0f} s") from error

    async def _refuse(self, gone: Version) -> None:
        for claim in [c for c in self._held.values() if c.ticket.exact_version == gone]:
            del self._held[claim.ticket.id]
            await self._fail(claim, f"nobody has the weights of version {gone.short} any more")

    async def _fail(self, claim: Claim, reason: str) -> None:
        then = await self._ask(self._store.fail, claim, reason)
        log.warning("episode failed", ticket=claim.ticket.id, task=claim.ticket.task, attempt=claim.attempt,
                    reason=reason, then=then)

    async def _play(self, claim: Claim) -> None:
        bind_contextvars(ticket=claim.ticket.id)  # ends with the episode's task
        try:
            with span("episode", ticket=claim.ticket.id, worker=self._name, attempt=claim.attempt,
                      queue_seconds=queued(claim), version=self._engine.version.short) as told:
                episode = await self._player.play(claim.ticket, claim.attempt)
                verdict = await self._ask(self._store.commit_episode, claim, episode)
                if told:
                    told.set(verdict=verdict, end=episode.end, steps=len(episode.steps), reward=episode.total_reward)
            self._meter.finished(episode, accepted=verdict == "accepted")
        except EnvFault as fault:
            await self._fail(claim, f"{fault.boundary}: {fault}")
            self._meter.failed()
        except GagpoError:
            raise
        except Exception as error:
            # The parser, the template or the environment's client could not handle this episode: others can go on.
            log.exception("episode broke", task=claim.ticket.task, attempt=claim.attempt)
            await self._fail(claim, f"episode: {described(error)}")
            self._meter.failed()
        finally:
            del self._playing[claim.ticket.id]
            self._wake.set()

    async def _renew(self) -> None:
        claims = [claim for claim, _ in self._playing.values()] + list(self._held.values())
        for lost in await self._ask(self._store.renew_claims, self._name, claims):
            log.warning("claim lost", ticket=lost.ticket.id, attempt=lost.attempt)
            playing = self._playing.get(lost.ticket.id)
            if playing is not None and playing[0] == lost:
                playing[1].cancel()
            elif self._held.get(lost.ticket.id) == lost:
                del self._held[lost.ticket.id]

    async def _beat(self) -> None:
        pointer = self._pointer[0] if self._pointer else None
        beat = self._meter.beat(playing=len(self._playing), held=len(self._held), pointer=pointer)
        await self._ask(self._store.beat, self._name, beat)

    async def _every(self, seconds: float, act: Callable[[], Awaitable[None]]) -> None:
        while True:
            await act()
            await asyncio.sleep(seconds)

    async def _ask(self, call: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """A call of the store, which is synchronous, under a deadline."""
        try:
            async with asyncio.timeout(self._store.longest_s):
                return await asyncio.to_thread(call, *arguments, **named)
        except TimeoutError as error:
            raise StoreFault(f"{call.__name__} gave no answer in {self._store.longest_s:.0f} s") from error

    def _may_start(self, claim: Claim) -> bool:
        return self._pointer is not None and may_start(claim.ticket, self._engine.version, self._pointer[0])

    def _at_pointer(self) -> bool:
        return self._pointer is not None and self._engine.version == self._pointer[0]


def _first(group: BaseExceptionGroup) -> BaseException:
    """One leaf of a group of faults: they share a cause, and the caller wants one line."""
    head = group.exceptions[0]
    return _first(head) if isinstance(head, BaseExceptionGroup) else head
