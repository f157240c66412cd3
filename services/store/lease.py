"""Leases: at most one process acts in a role. The writes of a process that has lost the role are refused."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from services.errors import LeaseLost, StoreFault
from services.store.connection import Connection


class LeaseHeld(StoreFault):
    """Another living process holds the role."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A role held by one process. Every fenced script compares epoch and holder with those in Redis."""

    role: str
    holder: str
    epoch: int
    """Number of the acquisition. It grows by one each time."""
    ttl_s: float


class Leases:
    """The roles of a run."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def acquire(self, role: str, holder: str, ttl_s: float = 15.0) -> Lease:
        """Takes a role for `ttl_s` seconds. Raises LeaseHeld if another `holder` has an unexpired lease."""
        epoch, *living = self._connection.script("acquire", holder, int(ttl_s * 1000), role=role)
        if not epoch:
            raise LeaseHeld(f"{role} is held by {living[0].decode()} for another {living[1] / 1000:.1f} s")
        return Lease(role=role, holder=holder, epoch=epoch, ttl_s=ttl_s)

    def renew(self, lease: Lease) -> None:
        """Extends a lease to `ttl_s` seconds from now. Call it three times within that time. Raises LeaseLost."""
        self._connection.fenced("renew", lease, int(lease.ttl_s * 1000))

    def release(self, lease: Lease) -> None:
        """Gives a role up, so that anyone may take it at once. Raises LeaseLost."""
        self._connection.fenced("renew", lease, 0)


class LeaseKeeper:
    """Renews a lease three times within its time to live, in its own thread, because a step may take longer."""

    def __init__(self, leases: Leases, lease: Lease) -> None:
        self._leases = leases
        self._lease = lease
        self._error: Exception | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"lease-{lease.role}", daemon=True)

    def __enter__(self) -> LeaseKeeper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(self._lease.ttl_s)
        if self._error is None:
            self._leases.release(self._lease)

    def check(self) -> None:
        """Raises LeaseLost if this process has lost the role or could not renew the lease."""
        if self._error is not None:
            raise LeaseLost(f"the lease of {self._lease.role} could not be renewed: {self._error}") from self._error

    def _run(self) -> None:
        """Renews until stopped or until a renewal fails, whose error `check` raises in the owner's thread."""
        while not self._done.wait(self._lease.ttl_s / 3):
            try:
                self._leases.renew(self._lease)
            except Exception as error:
                self._error = error
                return
