"""Tracks the workers that take part in transfers from GPU to GPU, and the current round. Plain state, no waits.

A *round* sends one version from ranks of the learner to processes of vLLM. Each sender has a share: pieces of tensors,
whose bytes are one stream.

    way   senders                            streams that a receiver reads
    nccl  the ranks that hold all shards     all: each rank sends its own rows to all receivers
    ipc   every rank                         that of the rank on its own GPU, which holds whole tensors for it
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

import msgspec

from services.records import Version
from services.weights.pack import Manifest, Share

Way = Literal["nccl", "ipc"]
SILENT_S = 10.0
"""Seconds without a call after which a worker no longer takes part."""


class Participant(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout worker that takes part in transfers."""

    worker: str
    processes: int = 1
    """Processes of its engine: rollout.tensor_parallel."""
    shared_gpu: int = 0
    """Number of the learner rank with which it shares a GPU; only `ipc` reads it."""


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a receiver has to know about one transfer."""

    version: Version
    way: Way
    manifest: Manifest
    shares: list[Share]
    """One share for each sender."""
    members: list[Participant]
    group: str = ""
    """The place where senders and receivers meet (link.py). A new place means new connections."""
    handles: list[bytes] = []
    """`ipc`: one handle of memory for each sender (shared_memory.py)."""
    seconds: float
    """Deadline of the round."""

    @property
    def sizes(self) -> list[int]:
        """Bytes of each sender's stream."""
        return [sum(piece.size for piece in share) for share in self.shares]

    @property
    def receivers(self) -> int:
        """Number of receiving processes."""
        return sum(member.processes for member in self.members)

    def first_receiver(self, worker: str) -> int | None:
        """Returns the number of a worker's first process among all receivers; None if it takes no part."""
        names = [member.worker for member in self.members for _ in range(member.processes)]
        return names.index(worker) if worker in names else None


class TransferRegistry:
    """The workers that take part, the current round, and how it ended for each worker."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[Participant, float]] = {}
        self._round: Round | None = None
        self._outcomes: dict[str, str] = {}
        self.sent: Version | None = None
        """The version of the last round."""

    def call(self, member: Participant) -> Round | None:
        """Registers a worker for SILENT_S seconds. Returns the round that it is in and has not reported on, or None."""
        self._seen[member.worker] = member, self._clock()
        current = self._round
        if current is None or current.first_receiver(member.worker) is None or member.worker in self._outcomes:
            return None
        return current

    def members(self) -> list[Participant]:
        """Returns the workers that called lately, in order of name."""
        now = self._clock()
        return [member for _, (member, seen) in sorted(self._seen.items()) if now - seen < SILENT_S]

    def leave(self, worker: str) -> None:
        """Removes a worker, which takes no part in later rounds."""
        self._seen.pop(worker, None)

    def begin(self, transfer: Round) -> None:
        """Begins a round, which replaces the previous one."""
        self._round, self._outcomes, self.sent = transfer, {}, transfer.version

    def report(self, worker: str, version: Version, fault: str) -> None:
        """Records how a round ended for a worker: "" if it holds the version, else why not."""
        if self._round is not None and self._round.version == version:
            self._outcomes[worker] = fault

    def progress(self) -> tuple[dict[str, str], list[str]]:
        """Returns worker -> why the round failed for it, and the workers that still receive."""
        if self._round is None:
            return {"the weights actor": "it has lost the round"}, []
        alive = {member.worker for member in self.members()}
        waiting = [member.worker for member in self._round.members if member.worker not in self._outcomes]
        faults = {worker: fault for worker, fault in self._outcomes.items() if fault}
        faults |= {worker: "it is gone" for worker in waiting if worker not in alive}
        return faults, [worker for worker in waiting if worker in alive]

    def end(self) -> None:
        """Ends the round. Workers that have not begun it skip it."""
        self._round = None
