"""Rank 0's end of the weight channel (services/weights/channel.py).

In a round the ranks send to the workers of the registry. Rank 0 asks for progress until every member has reported or is
gone, or until the deadline. A failed round ends its connections, and the next round connects the members that it has.
After GIVE_UP failed rounds in a row there are no more, because each may take until its deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Literal

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


class WeightSender:
    """Sends versions from GPU to GPU if `way` says so, and through host memory otherwise or if that fails.

    `publish` sends a version to the weights actor. `wanted` returns a version that a worker needs and the actor lacks.
    `ask` calls a method of the registry. `seconds`: deadline of a round.
    """

    def __init__(self, ranks: RankSender, publish: Callable[[Version, Packed], None],
                 wanted: Callable[[], Version | None] = lambda: None, *, way: Way | Literal["host"] = "host",
                 ask: Callable[..., Any] = lambda *_: None, seconds: float = 0.0) -> None:
        self._ranks, self._publish_to_actor, self._wanted, self._ask = ranks, publish, wanted, ask
        self._way: Way | None = None if way == "host" else way
        self.seconds = seconds
        self.failed = 0
        """Rounds in a row that failed."""
        self._version: Version | None = None
        """The version of the last snapshot, which is on the GPUs (`_streams`), in host memory (`_copied`), or both."""
        self._streams: Snapshot | None = None
        self._copied: Future[Packed] | None = None
        self._published: tuple[Version, Packed] | None = None
        self._connected: tuple[list[Participant], str] = [], ""

    def snapshot(self, version: Version) -> Version:
        """Copies the learner's weights, so that they may change. Returns `version` with their digest.

        The copy is on the GPUs, or in host memory if no worker can receive it from GPUs.
        """
        self._streams = self._copied = None
        if self._way is None or self.failed >= GIVE_UP or not self._ask("members"):
            packed, self._copied = self._ranks.pack(), Future()
            self._copied.set_result(packed)
            digest = packed.digest
        else:
            self._streams = self._ranks.snapshot()
            digest = self._streams.digest
        self._version = msgspec.structs.replace(version, digest=digest)
        return self._version

    def send(self, version: Version, live: Callable[[Version], None]) -> None:
        """Sends the last snapshot: in a round, and through host memory if a worker lacks it then. Calls `live` once the
        version may become current.

        A round that fails is no error, because host memory has the version in the end. Raises DeadlineExceeded if the
        weights actor gives no answer in learner.collective_s; then all ranks end and are started again.
        """
        if self._streams is None or not self._round(version, self._streams):
            self._copied = self._copied or self._ranks.copy(version.digest)
            self._publish(version, self._copied.result())
        live(version)

    def copy(self) -> Future[Packed]:
        """Begins to copy the version that was sent last to host memory, from its snapshot, and publishes it there.

        Called between sending a version and the next snapshot, which waits for the copy.
        """
        if self._copied is None:
            assert self._version is not None
            version, copied = self._version, self._ranks.copy(self._version.digest)
            self._copied = copied
            started(lambda: self._publish_copy(version, copied), "publish")  # a callback may run in this thread
        return self._copied

    def keep(self) -> None:
        """Publishes the version that was sent last if a worker needs it: because the worker started late, or because
        the weights actor died and lost it."""
        wanted = self._wanted()
        if self._published is not None and wanted == self._published[0]:
            self._publish(*self._published)
        elif self._streams is not None and wanted == self._version:
            self.copy()

    def _publish(self, version: Version, packed: Packed) -> None:
        self._published = version, packed
        self._publish_to_actor(version, packed)

    def _publish_copy(self, version: Version, copied: Future[Packed]) -> None:
        try:
            self._publish(version, copied.result())
        except Exception as error:  # callers of copy() get it too, and a worker that needs the version asks
            log.warning("not published in host memory", version=version.short, reason=str(error))

    def _round(self, version: Version, snapshot: Snapshot) -> bool:
        """Runs a round. Returns whether every present worker has the version."""
        assert self._way is not None
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
