"""The state of a run besides its tickets and groups: newest weights, incarnations, heartbeats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from services.records import Version
from services.store.connection import Connection
from services.store.lease import Lease
from services.weights.canary import Canary


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """The unplayed tickets at one moment."""

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
    """Number of groups in manifests. begin_step adds to it and so frees capacity."""
    outstanding_tickets: int
    ready_groups: int
    ready_eval: int
    next_group: int
    """Number of the next training group."""
    last_step: int
    """Step of the newest manifest."""
    retired_step: int
    """Newest step whose episodes are deleted."""


class RunState(Connection):
    """The version pointer, the incarnations and the heartbeats of a run."""

    def backlog(self) -> Backlog:
        """Returns how much work waits, and for how long."""
        waiting, claimed, oldest = 0, 0, float("inf")
        for stream in ("tickets", "evals"):
            depth, first = self.read(("XLEN", stream), ("XRANGE", stream, "-", "+", "COUNT", 1))
            if first:  # before the first issue there is no consumer group to ask for
                (pending,) = self.read(("XPENDING", stream, "workers"))
                held = min(int(pending["pending"]), depth)
                waiting, claimed = waiting + depth - held, claimed + held
                oldest = min(oldest, int(first[0][0].split(b"-")[0]) / 1000)
        (retained,) = self.read(("HGET", "counters", "bytes"))
        return Backlog(waiting=waiting, claimed=claimed, retained_bytes=int(retained or 0),
                       oldest_s=max(0.0, self._now() - oldest))

    def _now(self) -> float:
        seconds, microseconds = self.patiently("TIME", self.redis.time)
        return seconds + microseconds / 1e6

    def incarnation(self, lease: Lease, *, above: int = 0) -> int:
        """Returns a new learner incarnation. `above`: the checkpoint's, so that an emptied Redis starts beyond it."""
        return int(self.script("incarnation", *lease.fence, above, role=lease.role))

    def publish_version(self, lease: Lease, version: Version, path: str, canary: Canary | None = None) -> None:
        """Points every rollout worker to new weights. `path`: an export for workers that cannot fetch them. `canary`:
        what the learner computes with them."""
        self.script("publish", *lease.fence, msgspec.json.encode((version, path)),
                    msgspec.json.encode((version, canary)), role=lease.role)

    def version(self) -> tuple[Version, str] | None:
        """Returns the version that was published last, with its export; None before the first."""
        (pointer,) = self.read(("HGET", "counters", "version"))
        return msgspec.json.decode(pointer, type=tuple[Version, str]) if pointer else None

    def canary(self, version: Version) -> Canary | None:
        """Returns the canary of the current version; None if it has none, or is not `version`."""
        (stored,) = self.read(("HGET", "counters", "canary"))
        if not stored:
            return None
        current, canary = msgspec.json.decode(stored, type=tuple[Version, Canary | None])
        return canary if current == version else None

    def publish_servers(self, lease: Lease, urls: Sequence[str]) -> None:
        """Publishes the present list of environment servers to every rollout worker."""
        self.script("servers", *lease.fence, msgspec.json.encode(urls), role=lease.role)

    def servers(self) -> tuple[str, ...]:
        """Returns the environment servers that were published last; empty before the first time."""
        (urls,) = self.read(("HGET", "counters", "servers"))
        return msgspec.json.decode(urls, type=tuple[str, ...]) if urls else ()

    def correct(self, correction: str) -> None:
        """Replaces the instructions that new training tickets carry. Any worker may: the last one writes."""
        self.script("correct", correction)

    def correction(self) -> str:
        """Returns the instructions that new training tickets carry; "" before the first."""
        (correction,) = self.read(("HGET", "counters", "correction"))
        return correction.decode() if correction else ""

    def mark_evaluated(self, lease: Lease, step: int) -> None:
        """Marks the evaluation of `step` as complete, so that newer weights may be published."""
        self.script("mark_evaluated", *lease.fence, step, role=lease.role)

    def evaluated(self) -> int:
        """Returns the newest step whose evaluation is complete; -1 before the first."""
        (step,) = self.read(("HGET", "counters", "evaluated"))
        return -1 if step is None else int(step)

    def beat(self, name: str, snapshot: Mapping[str, Any], ttl_s: float = 10.0) -> None:
        """Sends a heartbeat that expires after `ttl_s` seconds."""
        self.script("beat", name, msgspec.json.encode(snapshot), int(ttl_s * 1000))

    def beats(self, name: str | None = None) -> dict[str, dict[str, Any]]:
        """Returns the last heartbeat of each living process, by name. `name`: of this process alone, if it lives."""
        flat = self.script("beats", *([] if name is None else [name]))
        return {
            name.decode(): msgspec.json.decode(snapshot)
            for name, snapshot in zip(flat[::2], flat[1::2], strict=True)
        }
