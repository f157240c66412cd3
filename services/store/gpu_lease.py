"""The memory of GPUs that rollout workers and learner ranks fill in turns, one of each on every GPU (`rollout.sleep`).

A lease in the store for each GPU says whose turn it is, so they take turns even if one dies. A holder that lost its
lease notices at its next `check`; until then both may fill the GPU.

    worker    takes its GPU before its engine starts or wakes up. If the learner wants it: sleeps, then gives it up
    learner   asks for all GPUs by its heartbeat, takes each once its worker has given it up, trains, gives them back

A holder that dies loses the GPU when its lease expires.
"""

from __future__ import annotations

from contextlib import ExitStack

from services.store.lease import LeaseHeld, LeaseKeeper
from services.store.store import Store
from services.telemetry.heartbeat import Heartbeat, all_do

ROLE = "gpu"
"""Begins the name of each lease. The number of the GPU among the shared ones follows."""
ASKING = "learner-0"
"""Name of the process whose heartbeat asks for the GPUs: of a learner's ranks, only rank 0 sends heartbeats."""
WANTED = "waits for the GPU"
"""The activity in the heartbeat of a learner that is about to train."""
TTL_S = 15.0


class GpuLease:
    """One side's hold on one of the shared GPUs. `holder` names the side, and stays the same over its restarts."""

    def __init__(self, store: Store, holder: str, index: int = 0) -> None:
        self._store = store
        self._role = f"{ROLE}-{index}"
        self._holder = holder
        self._held = ExitStack()
        self._keeper: LeaseKeeper | None = None

    def wanted(self) -> bool:
        """Returns whether the learner waits for the GPU."""
        return all_do(self._store.state.beats(ASKING), "learner", WANTED)

    def send_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Sends the learner's heartbeat at once, because the other side waits for it."""
        heartbeat.send(self._store.state.beat)

    def take(self) -> bool:
        """Takes the GPU and returns True, or False while another living process holds it."""
        try:
            lease = self._store.leases.acquire(self._role, self._holder, ttl_s=TTL_S)
        except LeaseHeld:
            return False
        self._keeper = self._held.enter_context(LeaseKeeper(self._store.leases, lease))
        return True

    def give(self) -> None:
        """Gives the GPU up, if it is held."""
        self._keeper = None
        self._held.close()

    def check(self) -> None:
        """Raises LeaseLost if the GPU was held and is lost."""
        if self._keeper is not None:
            self._keeper.check()
