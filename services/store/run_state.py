"""The state of a run besides its tickets and steps: newest weights, incarnations, servers, heartbeats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from services.records import Version
from services.store.connection import Connection
from services.store.lease import Lease
from services.telemetry.heartbeat import TTL_S
from services.weights.canary import Canary


class RunState:
    """The version pointer, the incarnations, the servers and the heartbeats of a run."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def incarnation(self, lease: Lease, *, above: int = 0) -> int:
        """Returns a new learner incarnation. `above`: the checkpoint's, so that an emptied Redis starts beyond it."""
        return int(self._connection.fenced("incarnation", lease, above))

    def publish_version(self, lease: Lease, version: Version, path: str, canary: Canary | None = None) -> None:
        """Points every rollout worker to new weights. `path`: an export for workers that cannot fetch them. `canary`:
        what the learner computes with them."""
        self._connection.fenced("publish", lease, msgspec.json.encode((version, path)),
                                msgspec.json.encode((version, canary)))

    def version(self) -> tuple[Version, str] | None:
        """Returns the version that was published last, with its export; None before the first."""
        pointer = self._counter("version")
        return msgspec.json.decode(pointer, type=tuple[Version, str]) if pointer else None

    def canary(self, version: Version) -> Canary | None:
        """Returns the canary of the current version; None if it has none, or is not `version`."""
        stored = self._counter("canary")
        if not stored:
            return None
        current, canary = msgspec.json.decode(stored, type=tuple[Version, Canary | None])
        return canary if current == version else None

    def publish_servers(self, lease: Lease, urls: Sequence[str]) -> None:
        """Publishes the present list of environment servers to every rollout worker."""
        self._connection.fenced("servers", lease, msgspec.json.encode(urls))

    def servers(self) -> tuple[str, ...]:
        """Returns the environment servers that were published last; empty before the first time."""
        urls = self._counter("servers")
        return msgspec.json.decode(urls, type=tuple[str, ...]) if urls else ()

    def correct(self, correction: str) -> None:
        """Replaces the instructions that new training tickets carry. Any worker may call it: the last call counts."""
        self._connection.script("correct", correction)

    def correction(self) -> str:
        """Returns the instructions that new training tickets carry; "" before the first."""
        correction = self._counter("correction")
        return correction.decode() if correction else ""

    def mark_evaluated(self, lease: Lease, step: int) -> None:
        """Marks the evaluation of `step` as complete, so that newer weights may be published."""
        self._connection.fenced("mark_evaluated", lease, step)

    def evaluated(self) -> int:
        """Returns the newest step whose evaluation is complete; -1 before the first."""
        step = self._counter("evaluated")
        return -1 if step is None else int(step)

    def beat(self, name: str, snapshot: Mapping[str, Any], ttl_s: float = TTL_S) -> None:
        """Sends a heartbeat that expires after `ttl_s` seconds."""
        self._connection.script("beat", name, msgspec.json.encode(snapshot), int(ttl_s * 1000))

    def beats(self, name: str | None = None) -> dict[str, dict[str, Any]]:
        """Returns the last heartbeat of each living process, by name. `name`: of this process alone, if it lives."""
        flat = self._connection.script("beats", *([] if name is None else [name]))
        return {name.decode(): msgspec.json.decode(snapshot)
                for name, snapshot in zip(flat[::2], flat[1::2], strict=True)}

    def _counter(self, name: str) -> bytes | None:
        (value,) = self._connection.read(("HGET", "counters", name))
        return value
