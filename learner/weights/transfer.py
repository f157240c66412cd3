"""Rank 0's side of transfers between GPUs: one round for each version, with the workers that are there.

    prepare   all ranks: snapshot and digest
    begin     the round is told to the members, which join its links or open its memory
    send      all ranks: broadcast
    wait      until every member has told how it ended or is silent, or until the deadline
    release   all ranks

Rank 0 looks for members that are silent or have failed while it sends and while it waits, and then ends the round for
all: within a node NCCL tells nobody that a process is gone. A round in which anything failed ends its links, and the
members take this version from host memory, like a worker that comes late. The next round makes links with the members
that are there then. After GIVE_UP such rounds in a row none is tried any more, because each may cost its deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from learner.weights.sender import Prepared
from services.records import Version
from services.telemetry.logs import get_logger
from services.weights.rounds import Participant, Round, Way

LOOK_S = 0.02
GIVE_UP = 3
log = get_logger("transfer")


class Sender(Protocol):
    """The learner's part in a transfer, on all ranks (learner/trainer.py)."""

    def prepare(self) -> Prepared:
        """Takes the snapshots."""
        ...

    def offer_links(self, receivers: int) -> str:
        """Returns where new links meet."""
        ...

    def send(self, found: Round, lost: Callable[[], str]) -> None:
        """Sends the snapshots, until `lost` returns why the round has to end early."""
        ...

    def end_round(self, why: str) -> None:
        """Ends the round early for all who take part."""
        ...

    def release(self) -> None:
        """Frees the snapshots."""
        ...


@dataclass(slots=True, kw_only=True)
class Transfer:
    """Sends versions. `ask` calls a method of the meeting (services/weights/meeting.py) and returns its answer."""

    sender: Sender
    ask: Callable[..., Any]
    way: Way
    seconds: float
    failed: int = 0
    """Rounds in a row that failed."""
    _linked: tuple[list[Participant], str] = field(default=([], ""))

    def send(self, incarnation: int, step: int) -> tuple[Version, bool]:
        """Sends the learner's weights. Returns their version, and whether every worker that is there holds it.

        The learner's weights must not change meanwhile.
        """
        prepared = self.sender.prepare()
        version = Version(incarnation=incarnation, step=step, digest=prepared.digest)
        try:
            return version, self.failed < GIVE_UP and self._round(version, prepared)
        finally:
            self.sender.release()

    def _round(self, version: Version, prepared: Prepared) -> bool:
        present: list[Participant] = self.ask("members")
        members = [member for member in present if self.way == "nccl" or member.shared_gpu < len(prepared.shares)]
        if not members:
            return False
        started = time.monotonic()
        found = Round(version=version, way=self.way, manifest=prepared.manifest, shares=prepared.shares,
                      members=members, group=self._group(members), handles=prepared.handles, seconds=self.seconds)
        self.ask("begin", found)
        self.sender.send(found, lambda: _named(self._so_far(members)[0]))
        faults = self._faults(members, started)
        self.ask("end")
        self.failed = self.failed + 1 if faults else 0
        if faults:
            self._linked = [], ""
            log.warning("transfer failed", version=version.short, faults=faults, then="nothing is sent any more"
                        if self.failed == GIVE_UP else "workers take it from host memory")
        else:
            log.info("transferred", version=version.short, workers=len(members), seconds=time.monotonic() - started)
        return not faults and len(members) == len(present)

    def _group(self, members: list[Participant]) -> str:
        """Returns the name of the links, which stay as long as the members do; "" if the way has none."""
        if self.way == "ipc":
            return ""
        if self._linked[0] != members:
            self._linked = members, self.sender.offer_links(sum(member.processes for member in members))
        return self._linked[1]

    def _so_far(self, members: list[Participant]) -> tuple[dict[str, str], list[str]]:
        """Returns why it failed, for each worker for which it did, and the workers that have still to tell."""
        present: list[Participant] = self.ask("members")  # before the outcomes: a worker tells, and then may leave
        told: dict[str, str] = self.ask("outcomes")
        untold = [one for one in members if one.worker not in told]
        faults = {one.worker: "it is gone" for one in untold if one not in present}
        faults |= {one.worker: told[one.worker] for one in members if told.get(one.worker)}
        return faults, [one.worker for one in untold if one in present]

    def _faults(self, members: list[Participant], started: float) -> dict[str, str]:
        """Waits for all members that are there. Returns why it failed, for each worker for which it did."""
        ended = False
        while True:
            faults, waiting = self._so_far(members)
            if faults and not ended:
                ended = True
                self.sender.end_round(_named(faults))
            if not waiting:
                return faults
            if time.monotonic() - started > self.seconds:
                return faults | dict.fromkeys(waiting, f"no answer in {self.seconds:g} s (weights.seconds)")
            time.sleep(LOOK_S)


def _named(faults: dict[str, str]) -> str:
    return ", ".join(f"{worker}: {why}" for worker, why in faults.items())
