"""Rank 0's end of the weight channel: HostSender, and GpuSender in front of it (services/weights/channel.py).

GpuSender runs a round with the workers of the registry: all ranks send, and rank 0 asks for progress until every member
has reported or is gone, or until the deadline. A failed round ends its connections, and the next one connects the
members of that time. After GIVE_UP failed rounds in a row there are no more rounds, because each may take until its
deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import msgspec
import ray
from ray.exceptions import GetTimeoutError, RayActorError

from learner.weights.rank_sender import RankSender, Snapshot
from services.errors import DeadlineExceeded
from services.process.threads import started
from services.records import Version
from services.telemetry.logs import get_logger
from services.weights.pack import Packed
from services.weights.registry import Participant, Round, Way

ASK_S = 30.0
WANTED_EVERY_S = 2.0
PROGRESS_S = 0.02
GIVE_UP = 3
log = get_logger("transfer")


class WeightsActorClient:
    """Calls the weights actor. `actor`: its handle. If it dies, Ray creates it again, empty.

    `seconds` limits each call, also those that wait for the new actor (`learner.collective_s`).
    """

    def __init__(self, actor: Any, *, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._actor, self._seconds, self._clock = actor, seconds, clock
        self._asked = 0.0

    def publish(self, version: Version, packed: Packed) -> None:
        """Sends a version. If the actor dies meanwhile, its successor gets the version. Raises as `ask` does."""
        self.ask("publish", version, packed.manifest, packed.buffer)

    def ask(self, method: str, *arguments: Any) -> Any:
        """Returns the result of a method. If the actor dies, its successor is called. Raises DeadlineExceeded."""
        try:
            call = getattr(self._actor, method).options(max_task_retries=-1)
            return ray.get(call.remote(*arguments), timeout=self._seconds)
        except (RayActorError, GetTimeoutError) as error:
            raise DeadlineExceeded(f"{method}: the weights actor gave no answer in {self._seconds:g} s "
                                   "(learner.collective_s)") from error

    def wanted(self) -> Version | None:
        """Returns a version that a worker needs and the actor lacks, or None. Asks at most every WANTED_EVERY_S."""
        if self._clock() - self._asked < WANTED_EVERY_S:
            return None
        self._asked = self._clock()
        try:
            return ray.get(self._actor.wanted.remote(), timeout=ASK_S)
        except (RayActorError, GetTimeoutError):
            return None  # it is being created again, or its node is unreachable


class HostSender:
    """Sends versions through host memory. `publish` sends one to the weights actor. `wanted` returns a version that a
    worker needs and the actor lacks."""

    def __init__(self, ranks: RankSender, publish: Callable[[Version, Packed], None],
                 wanted: Callable[[], Version | None] = lambda: None) -> None:
        self._ranks, self._publish, self._wanted = ranks, publish, wanted
        self._snapshot: Packed | None = None
        self._sent: tuple[Version, Packed] | None = None

    def snapshot(self, version: Version) -> Version:
        """Packs the weights."""
        self._snapshot = self._ranks.pack()
        return msgspec.structs.replace(version, digest=self._snapshot.digest)

    def send(self, version: Version, live: Callable[[Version], None]) -> None:
        """Publishes the snapshot."""
        assert self._snapshot is not None
        self.publish(version, self._snapshot)
        live(version)

    def publish(self, version: Version, packed: Packed) -> None:
        """Sends a version to the weights actor."""
        self._sent = version, packed
        self._publish(version, packed)

    def copy(self) -> Future[Packed]:
        """Returns the version that was sent last, in host memory."""
        assert self._sent is not None
        copied: Future[Packed] = Future()
        copied.set_result(self._sent[1])
        return copied

    def keep(self) -> Version | None:
        """Publishes the last version again if a worker needs it, because the weights actor died and lost it.

        Returns the version that is needed.
        """
        wanted = self._wanted()
        if self._sent is not None and wanted == self._sent[0]:
            self.publish(*self._sent)
        return wanted


class GpuSender:
    """Sends versions from GPU to GPU, and through `host` if that fails. `ask` calls a method of the registry."""

    def __init__(self, ranks: RankSender, host: HostSender, ask: Callable[..., Any], *, way: Way,
                 seconds: float) -> None:
        self._ranks, self._host, self._ask = ranks, host, ask
        self._way: Way = way
        self.seconds = seconds
        self.failed = 0
        """Rounds in a row that failed."""
        self._snapshot: tuple[Version, Snapshot] | None = None
        self._copied: Future[Packed] | None = None
        self._connected: tuple[list[Participant], str] = [], ""

    def snapshot(self, version: Version) -> Version:
        """Copies the weights on the GPUs, or to host memory if no worker can receive them from GPUs."""
        self._snapshot = self._copied = None
        if self.failed >= GIVE_UP or not self._ask("members"):
            return self._host.snapshot(version)
        snapshot = self._ranks.snapshot()
        version = msgspec.structs.replace(version, digest=snapshot.digest)
        self._snapshot = version, snapshot
        return version

    def send(self, version: Version, live: Callable[[Version], None]) -> None:
        """Runs a round. Then publishes the version in host memory if a worker lacks it."""
        if self._snapshot is None:
            self._host.send(version, live)
            return
        if not self._round(version, self._snapshot[1]):
            self._copied = self._ranks.copy(version.digest)
            self._host.publish(version, self._copied.result())
        live(version)

    def copy(self) -> Future[Packed]:
        """Begins to copy the version that was sent last to host memory, and then publishes it there."""
        if self._snapshot is None:
            return self._host.copy()
        if self._copied is None:
            version, _ = self._snapshot
            copied = self._copied = self._ranks.copy(version.digest)
            started(lambda: self._published(version, copied), "publish")  # a callback may run in this thread
        return self._copied

    def keep(self) -> None:
        """Publishes the last version in host memory if a worker needs it, because it started late."""
        wanted = self._host.keep()
        if self._snapshot is not None and wanted == self._snapshot[0]:
            self.copy()

    def _published(self, version: Version, copied: Future[Packed]) -> None:
        try:
            self._host.publish(version, copied.result())
        except Exception as error:  # callers of copy() get it too, and a worker that needs the version asks
            log.warning("not published in host memory", version=version.short, reason=str(error))

    def _round(self, version: Version, snapshot: Snapshot) -> bool:
        """Runs a round. Returns whether every present worker has the version."""
        present: list[Participant] = self._ask("members")
        members = [member for member in present if self._way == "nccl" or member.shared_gpu < len(snapshot.shares)]
        started = time.monotonic()
        transfer = Round(version=version, way=self._way, manifest=snapshot.manifest, shares=snapshot.shares,
                         members=members, group=self._group(members), handles=snapshot.handles, seconds=self.seconds)
        self._ask("begin", transfer)
        self._ranks.send(transfer, lambda: _text(self._ask("progress")[0]))
        faults = self._faults(started)
        self._ask("end")
        if members:
            self.failed = self.failed + 1 if faults else 0
        if faults:
            self._connected = [], ""
            log.warning("transfer failed", version=version.short, faults=faults, then="no more rounds"
                        if self.failed == GIVE_UP else "workers take it from host memory")
        elif members:
            log.info("transferred", version=version.short, workers=len(members), seconds=time.monotonic() - started)
        return not faults and len(members) == len(present) > 0

    def _group(self, members: list[Participant]) -> str:
        """Returns the address of the connection, the same for the same members; "" if they do not connect."""
        if self._way == "ipc" or not members:
            return ""
        if self._connected[0] != members:
            self._connected = members, self._ranks.offer(sum(member.processes for member in members))
        return self._connected[1]

    def _faults(self, started: float) -> dict[str, str]:
        """Waits for all members. Returns worker -> reason for each failure."""
        aborted = False
        while True:
            faults, waiting = self._ask("progress")
            if faults and not aborted:
                aborted = True
                self._ranks.abort(_text(faults))
            if not waiting:
                return faults
            if time.monotonic() - started > self.seconds:
                return faults | dict.fromkeys(waiting, f"no answer in {self.seconds:g} s (weights.seconds)")
            time.sleep(PROGRESS_S)


def _text(faults: dict[str, str]) -> str:
    return ", ".join(f"{worker}: {reason}" for worker, reason in faults.items())
