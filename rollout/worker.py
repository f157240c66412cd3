"""The rollout worker: pulls tickets into free slots, plays them side by side, and follows the published weights.

    loop     waits for                            woken by                        writes
    drive    a free slot, a ticket, a version     an episode's end, the clock     claims, its own version
    episode  the engine, the environment          their replies                   the episode, or its failure
    turns    a finished turn                      an episode                      the turns, for another worker
    renew    5 s                                  the clock                       the claims it holds
    beat     2 s                                  the clock                       a metrics snapshot; reads the servers
    weights  a version sent from GPU to GPU       the learner's round             the engine's memory for it

If one loop fails, all end: the process exits and others claim its tickets. This file uses plain asyncio and no Ray.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from structlog.contextvars import bind_contextvars

from envservice.client.client import EnvClient
from rollout.engine.engine import Engine
from rollout.gpu_turns import GpuTurns
from rollout.store_calls import StoreCalls
from rollout.version_policy import Missing, may_start, next_version, usable, wanted_elsewhere
from services.config.sections import RolloutSection
from services.errors import AgentFault, EnvFault, GagpoError, UserError, WrongWeights, described, first_of
from services.records import Episode, PlayedTurn, Ticket, Version
from services.store.store import Claim, Store, WithoutSteps
from services.telemetry.heartbeat import BEAT_S, NO_SERVERS, Heartbeat
from services.telemetry.logs import bind, get_logger
from services.weights.channel import WeightReceiver

LOADS = 64
"""Number of newest versions whose load times a worker remembers."""


class Meter:
    """Counts the worker's work. The engine reports each answer to it."""

    def __init__(self, name: str, engine: Engine, *, slots: int) -> None:
        self._heartbeat = Heartbeat(name, "rollout")
        self._meters = self._heartbeat.meters
        self._engine = engine
        self._loads: deque[tuple[Version, float]] = deque(maxlen=LOADS)
        self._meters("gagpo_rollout_slots").set(slots)
        engine.listener = self.sampled

    def sampled(self, prompt: int, response: int, seconds: float) -> None:
        """Counts one answer of the engine: its tokens and its seconds."""
        self._meters("gagpo_rollout_tokens_total", kind="prompt").inc(prompt)
        self._meters("gagpo_rollout_tokens_total", kind="response").inc(response)
        self._meters("gagpo_rollout_turn_seconds").observe(seconds)
        self._heartbeat.progressed()

    def claimed(self, claims: list[Claim]) -> None:
        """Counts those of the claimed tickets that were played before."""
        self._meters("gagpo_rollout_redeliveries_total").inc(sum(claim.attempt > 1 for claim in claims))

    def started(self, claim: Claim) -> None:
        """Records how long the ticket of a starting episode has waited for a worker, unless it was played before."""
        if claim.attempt == 1:
            waited = time.monotonic() - max(claim.issued_at, self._playable_since(claim.ticket))
            self._meters("gagpo_rollout_queue_seconds").observe(waited)

    def _playable_since(self, ticket: Ticket) -> float:
        """Returns when the worker loaded the first weights that may play the ticket; -inf if that is unknown."""
        own = self._engine.version
        return next((at for version, at in self._loads if may_start(ticket, version, own)), -math.inf)

    def finished(self, episode: Episode, *, accepted: bool) -> None:
        """Counts one finished episode."""
        meters = self._meters
        meters("gagpo_rollout_episodes_total", outcome="accepted" if accepted else "refused").inc()
        meters("gagpo_rollout_episode_ends_total", end=episode.end).inc()
        meters("gagpo_rollout_env_steps_total").inc(len(episode.steps))
        meters("gagpo_rollout_replays_total").inc(episode.replays)
        meters("gagpo_rollout_episode_seconds").observe(episode.seconds)
        meters("gagpo_rollout_episode_length_steps").observe(len(episode.steps))
        self._heartbeat.progressed()

    def failed(self) -> None:
        """Counts one episode that a fault ended."""
        self._meters("gagpo_rollout_episodes_total", outcome="failed").inc()

    def updated(self, seconds: float) -> None:
        """Counts one update of the weights, which the engine holds now."""
        self._loads.append((self._engine.version, time.monotonic()))
        self._meters("gagpo_rollout_update_seconds").observe(seconds)
        self._heartbeat.progressed()

    def sleeps(self) -> None:
        """Reports that the engine sleeps while the learner trains on the same GPU."""
        self._heartbeat.doing("asleep while the learner trains")

    def fetches(self, version: Version) -> None:
        """Reports that the worker fetches and loads `version`."""
        self._heartbeat.doing(f"fetching weights {version.short}")

    def beat(self, *, playing: int, held: int, pointer: Version | None) -> dict[str, Any]:
        """Returns the snapshot for RunState.beat. `pointer`: the current version."""
        own, meters = self._engine.version, self._meters
        meters("gagpo_rollout_tickets", state="playing").set(playing)
        meters("gagpo_rollout_tickets", state="held").set(held)
        meters("gagpo_rollout_kv_used_ratio").set(self._engine.kv_used)
        meters("gagpo_rollout_version_incarnation").set(own.incarnation)
        meters("gagpo_rollout_version_step").set(own.step)
        if pointer is not None:
            meters("gagpo_rollout_version_lag_incarnations").set(pointer.incarnation - own.incarnation)
            if pointer.incarnation == own.incarnation:
                meters("gagpo_rollout_version_lag_steps").set(pointer.step - own.step)
        if own.incarnation >= 0:  # before its first update it holds weights that nobody published
            self._heartbeat.holds(own.short)
        return self._heartbeat.beat()

    def waits(self, *, playing: int, held: int, missing: Version | None, no_servers: bool = False) -> None:
        """Reports what the worker waits for. `missing`: the current version, if nobody has it."""
        if playing and no_servers:
            self._heartbeat.doing(NO_SERVERS)
        elif playing:
            self._heartbeat.doing("playing")
        elif missing is not None:
            self._heartbeat.doing(f"waits for weights {missing.short}, which nobody has")
        else:
            self._heartbeat.doing("waits for a version" if held else "waits for tickets")


PAUSE_S = 0.02
"""Seconds between two writes. Each write has all turns that were finished meanwhile."""
Entry = tuple[Claim, int, PlayedTurn]
"""A claim, the index of its turn, and the turn."""


class TurnLog:
    """A queue of finished turns and the loop that writes them. Episodes never wait for it.

    The store ignores a turn that is written after its episode was committed.
    """

    def __init__(self, write: Callable[[Sequence[Entry]], Awaitable[None]]) -> None:
        self._write = write
        self._queue: list[Entry] = []
        self._filled = asyncio.Event()

    def add(self, claim: Claim, index: int, turn: PlayedTurn) -> None:
        """Queues a finished turn."""
        self._queue.append((claim, index, turn))
        self._filled.set()

    async def run(self) -> None:
        """Writes until cancelled. Raises StoreFault."""
        while True:
            await self._filled.wait()
            self._filled.clear()
            turns, self._queue = self._queue, []
            await self._write(turns)
            await asyncio.sleep(PAUSE_S)


POLL_S = 0.25
RENEW_S = 5.0
WRONG = "report this fault of gagpo or vLLM; weights.transfer=host or another version of vLLM may be right"
T = TypeVar("T")
log = get_logger("worker")


class TicketRunner(Protocol):
    """Plays the episodes of tickets: rollout/episode.py, or rollout/agents/runner.py with the user's own agent."""

    @property
    def env(self) -> EnvClient:
        """The client of the environment servers."""
        ...

    async def play(self, ticket: Ticket, attempt: int, *, played: Sequence[PlayedTurn],
                   keep: Callable[[int, PlayedTurn], object]) -> Episode:
        """Plays one episode. AgentFault and EnvFault fail only this attempt; any other Fault ends the worker."""
        ...


class RolloutWorker:
    """One rollout worker. Its engine must have started. `weights` loads published versions into it."""

    def __init__(self, name: str, *, store: Store, engine: Engine, runner: TicketRunner, weights: WeightReceiver,
                 settings: RolloutSection, gpu_turns: GpuTurns | None = None) -> None:
        self._name = name
        self._store = store
        self._calls = StoreCalls(store.longest_s)
        self._engine = engine
        self._runner = runner
        self._weights = weights
        self._slots = settings.slots
        self._retry_s = settings.retry_seconds
        self._playing: dict[str, tuple[Claim, asyncio.Task[None]]] = {}
        self._ending: set[Claim] = set()
        """Claims whose end is on its way to the store: its answer says whether they were lost."""
        self._held: dict[str, Claim] = {}
        self._pointer: tuple[Version, str] | None = None
        self._missing = Missing()
        self._wake = asyncio.Event()
        self._meter = Meter(name, engine, slots=settings.slots)
        self._turns = TurnLog(lambda turns: self._calls.for_loop(store.keep_turns, name, turns))
        self._gpu_turns = gpu_turns
        self._draining = False

    async def run(self) -> None:
        """Works until it is drained or cancelled. Raises the Fault or UserError that ended it."""
        try:
            async with asyncio.TaskGroup() as group:
                others = [group.create_task(self._turns.run(), name="turns"),
                          group.create_task(self._every(RENEW_S, self._renew), name="renew"),
                          group.create_task(self._every(BEAT_S, self._beat), name="beat"),
                          group.create_task(self._weights.run(), name="weights")]
                await self._drive(group)
                for other in others:
                    other.cancel()
        except BaseExceptionGroup as failures:
            errors, others = failures.split(GagpoError)
            if others is None and errors is not None:
                raise first_of(errors.subgroup(UserError) or errors) from failures
            raise

    @property
    def playing(self) -> int:
        """Number of episodes that it plays now."""
        return len(self._playing)

    def drain(self) -> None:
        """Lets the worker finish its claimed tickets and take no more. Then `run` returns."""
        self._draining = True
        self._wake.set()

    async def _drive(self, group: asyncio.TaskGroup) -> None:
        while not self._draining or self._playing or self._held:
            self._wake.clear()
            if self._gpu_turns is not None:
                await self._gpu_turns.turn(self._engine, self._meter.sleeps)
            await self._claim()
            self._start(group)
            if await self._follow():
                continue
            self._meter.waits(playing=len(self._playing), held=len(self._held), missing=self._missing.version,
                              no_servers=self._runner.env.away)
            # wait_for is not used: up to Python 3.11 it swallows a cancellation that comes together with the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._wake.wait()

    async def _claim(self) -> None:
        """Fills the free slots. Evaluation tickets of another version are held until the worker loads that version."""
        held = [claim.ticket for claim in self._held.values()]
        room = self._slots - len(self._playing) - sum(ticket.kind == "eval" for ticket in held)
        if room > 0 and not self._draining:
            # Training episodes must end before the worker loads an older version, so it starts no more of them.
            train = not (self._at_pointer() and wanted_elsewhere(self._engine.version, held))
            claims = await self._calls.for_loop(
                self._store.claim, self._name, room, own=self._engine.version, train=train)
            self._held |= {claim.ticket.id: claim for claim in claims}
            self._meter.claimed(claims)
        # Read after the claim, so that the version for which a ticket was issued is already published.
        self._pointer = await self._calls.for_loop(self._store.state.version)

    def _start(self, group: asyncio.TaskGroup) -> None:
        for claim in list(self._held.values()):
            if len(self._playing) < self._slots and self._may_start(claim):
                del self._held[claim.ticket.id]
                self._meter.started(claim)
                task = group.create_task(self._play(claim), name=claim.ticket.id)
                self._playing[claim.ticket.id] = claim, task

    async def _follow(self) -> bool:
        """Loads the version that is due, if any. Returns whether the loop should look again at once: the version was
        loaded, or nobody has it any more and its evaluation tickets failed."""
        if self._pointer is None:
            return False
        pointer, path = self._pointer
        playing = [claim.ticket for claim, _ in self._playing.values()]
        due = next_version(self._engine.version, pointer, playing, [c.ticket for c in self._held.values()])
        if due == self._engine.version or self._missing.pauses(due):
            return False
        self._meter.fetches(due)
        canary = await self._calls.for_loop(self._store.state.canary, due)
        try:
            seconds = await self._weights.receive(due, path if due == pointer else "", canary)
        except WrongWeights as fault:
            raise UserError(f"sampler {self._name} plays other weights than it was sent: {fault}", WRONG) from fault
        if seconds is not None:
            self._missing.version = None
            bind(version=due.short)
            log.info("weights updated", seconds=seconds)
            self._meter.updated(seconds)
        elif due == pointer:
            if self._missing.version != due:  # logged once, although the worker looks every few seconds
                log.warning("nobody has the current weights; waiting for them", version=due.short)
            self._missing.note(due)
            return False
        else:
            await self._refuse(due)
        return True

    async def _refuse(self, gone: Version) -> None:
        for claim in [c for c in self._held.values() if c.ticket.exact_version == gone]:
            del self._held[claim.ticket.id]
            await self._fail(claim, f"nobody has the weights of version {gone.short} any more")

    async def _fail(self, claim: Claim, reason: str, pause_s: float = 0.0) -> None:
        then = await self._end(self._store.fail, claim, reason, pause_s)
        log.warning("episode failed", ticket=claim.ticket.id, task=claim.ticket.task, attempt=claim.attempt,
                    reason=reason, then=then)

    async def _play(self, claim: Claim) -> None:
        bind_contextvars(ticket=claim.ticket.id)  # ends with the episode's task
        try:
            episode = await self._runner.play(claim.ticket, claim.attempt, played=await self._taken_over(claim),
                                              keep=partial(self._turns.add, claim))
            verdict = await self._end(self._store.commit_episode, claim, episode)
            self._meter.finished(episode, accepted=verdict == "accepted")
        except (AgentFault, EnvFault) as fault:
            pause_s = 0.0 if isinstance(fault, WithoutSteps) else claim.pause_s(self._retry_s)
            await self._fail(claim, f"{fault.boundary}: {fault}", pause_s)
            self._meter.failed()
        except GagpoError:
            raise
        except Exception as error:
            # The parser, the template or the environment's client failed on this episode. Other episodes can continue.
            log.exception("episode broke", task=claim.ticket.task, attempt=claim.attempt)
            await self._fail(claim, f"episode: {described(error)}", claim.pause_s(self._retry_s))
            self._meter.failed()
        finally:
            # If the claim was lost, this worker may have claimed the ticket again and be playing it already.
            playing = self._playing.get(claim.ticket.id)
            if playing is not None and playing[0] == claim:
                del self._playing[claim.ticket.id]
            self._wake.set()

    async def _taken_over(self, claim: Claim) -> list[PlayedTurn]:
        """Returns the first turns that an earlier attempt finished, as far as the ticket allows their versions."""
        kept = await self._calls.for_episode(self._store.turns, claim.ticket.id)
        turns = usable(kept, claim.ticket, self._engine.version)
        if turns:
            log.info("episode continues", turns=len(turns), attempt=claim.attempt)
        return turns

    async def _renew(self) -> None:
        claims = [claim for claim, _ in self._playing.values()] + list(self._held.values())
        for lost in await self._calls.for_loop(self._store.renew_claims, self._name, claims):
            ticket = lost.ticket.id
            playing, task = self._playing.get(ticket, (None, None))
            if playing == lost and task is not None and lost not in self._ending:
                task.cancel()
            elif self._held.get(ticket) == lost:
                del self._held[ticket]
            else:  # it ended while the store was asked
                continue
            log.warning("claim lost", ticket=ticket, attempt=lost.attempt)

    async def _beat(self) -> None:
        pointer = self._pointer[0] if self._pointer else None
        beat = self._meter.beat(playing=len(self._playing), held=len(self._held), pointer=pointer)
        await self._calls.for_loop(self._store.state.beat, self._name, beat)
        urls = await self._calls.for_loop(self._store.state.servers)
        if urls:
            self._runner.env.use(urls)

    async def _every(self, seconds: float, act: Callable[[], Awaitable[None]]) -> None:
        while True:
            await act()
            await asyncio.sleep(seconds)

    async def _end(self, report: Callable[..., T], claim: Claim, *result: Any) -> T:
        """Reports to the store how a claim ended: with an episode, or with the reason of a failure."""
        self._ending.add(claim)
        try:
            return await self._calls.for_episode(report, claim, *result)
        finally:
            self._ending.discard(claim)

    def _may_start(self, claim: Claim) -> bool:
        return self._pointer is not None and may_start(claim.ticket, self._engine.version, self._pointer[0])

    def _at_pointer(self) -> bool:
        return self._pointer is not None and self._engine.version == self._pointer[0]
