"""Leases: at most one process acts in a role. The writes of a process that has lost the role are refused."""

from __future__ import annotations

from dataclasses import dataclass

from services.errors import StoreFault
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

    @property
    def fence(self) -> tuple[int, str]:
        """Returns the first two arguments of every fenced script."""
        return self.epoch, self.holder


def acquire(connection: Connection, role: str, holder: str, ttl_s: float) -> Lease:
    """Takes a role that no living process holds; at once if `holder` held it before. Raises LeaseHeld."""
    epoch, *living = connection.script("acquire", holder, int(ttl_s * 1000), role=role)
    if not epoch:
        raise LeaseHeld(f"{role} is held by {living[0].decode()} for another {living[1] / 1000:.1f} s")
    return Lease(role=role, holder=holder, epoch=epoch, ttl_s=ttl_s)


def renew(connection: Connection, lease: Lease) -> None:
    """Extends the lease by its time to live. Raises LeaseLost."""
    connection.script("renew", *lease.fence, int(lease.ttl_s * 1000), role=lease.role)


def release(connection: Connection, lease: Lease) -> None:
    """Gives the role up, so that anyone may take it at once. Raises LeaseLost."""
    connection.script("renew", *lease.fence, 0, role=lease.role)
