"""The metrics of a rollout worker, and its heartbeat."""

from __future__ import annotations

import math
import time
from collections import deque
from typing import Any

from rollout.engine.engine import Engine
from rollout.version_policy import may_start
from services.records import Episode, Ticket, Version
from services.store.store import Claim
from services.telemetry.heartbeat import NO_SERVERS, Pulse
from services.telemetry.overhead import counted

LOADS = 64
"""Number of newest versions of which a worker remembers when it loaded them."""


class Meter:
    """Counts the worker's work. The engine reports each answer to it."""

    def __init__(self, name: str, engine: Engine, *, slots: int) -> None:
        self._pulse = Pulse(name, "rollout")
        self._meters = self._pulse.meters
        self._engine = engine
        self._loads: deque[tuple[Version, float]] = deque(maxlen=LOADS)
        self._meters("gagpo_rollout_slots").set(slots)
        engine.listener = self.sampled

    @counted("metrics")
    def sampled(self, prompt: int, response: int, seconds: float) -> None:
        """Counts one answer of the engine: its tokens and its seconds."""
        self._meters("gagpo_rollout_tokens_total", kind="prompt").inc(prompt)
        self._meters("gagpo_rollout_tokens_total", kind="response").inc(response)
        self._meters("gagpo_rollout_turn_seconds").observe(seconds)
        self._pulse.progressed()

    def claimed(self, claims: list[Claim]) -> None:
        """Counts claimed tickets that were played before."""
        self._meters("gagpo_rollout_redeliveries_total").inc(sum(claim.attempt > 1 for claim in claims))

    def started(self, claim: Claim) -> None:
        """Notes how long the ticket of a beginning episode has waited for a worker, if it was not played before."""
        if claim.attempt == 1:
            waited = time.monotonic() - max(claim.issued_at, self._playable_since(claim.ticket))
            self._meters("gagpo_rollout_queue_seconds").observe(waited)

    def _playable_since(self, ticket: Ticket) -> float:
        """Returns when the worker loaded the first weights that may play the ticket. Long ago if that is unknown."""
        own = self._engine.version
        return next((at for version, at in self._loads if may_start(ticket, version, own)), -math.inf)

    @counted("metrics")
    def finished(self, episode: Episode, *, accepted: bool) -> None:
        """Counts one finished episode."""
        meters = self._meters
        meters("gagpo_rollout_episodes_total", outcome="accepted" if accepted else "refused").inc()
        meters("gagpo_rollout_episode_ends_total", end=episode.end).inc()
        meters("gagpo_rollout_env_steps_total").inc(len(episode.steps))
        meters("gagpo_rollout_replays_total").inc(episode.replays)
        meters("gagpo_rollout_episode_seconds").observe(episode.seconds)
        meters("gagpo_rollout_episode_length_steps").observe(len(episode.steps))
        self._pulse.progressed()

    def failed(self) -> None:
        """Counts one episode that a fault ended."""
        self._meters("gagpo_rollout_episodes_total", outcome="failed").inc()

    def updated(self, seconds: float) -> None:
        """Counts one update of the weights, which the engine holds now."""
        self._loads.append((self._engine.version, time.monotonic()))
        self._meters("gagpo_rollout_update_seconds").observe(seconds)
        self._pulse.progressed()

    def sleeps(self) -> None:
        """Tells that the engine sleeps while the learner trains on the same GPU."""
        self._pulse.doing("asleep while the learner trains")

    def fetches(self, version: Version) -> None:
        """Tells that the worker is about to fetch and load `version`."""
        self._pulse.doing(f"fetching weights {version.short}")

    @counted("metrics")
    def beat(self, *, playing: int, held: int, pointer: Version | None) -> dict[str, Any]:
        """Returns the snapshot for Store.beat. `pointer`: the current version."""
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
        if own.incarnation >= 0:  # before its first update it has weights that nobody published
            self._pulse.holds(own.short)
        return self._pulse.beat()

    def waits(self, *, playing: int, held: int, missing: Version | None, no_servers: bool = False) -> None:
        """Tells what the worker waits for. `missing`: the current version, if nobody has it."""
        if playing and no_servers:
            self._pulse.doing(NO_SERVERS)
        elif playing:
            self._pulse.doing("playing")
        elif missing is not None:
            self._pulse.doing(f"waits for weights {missing.short}, which nobody has")
        else:
            self._pulse.doing("waits for a version" if held else "waits for tickets")
