"""The connections of one endpoint: how many it holds, how long each may be idle, and which one is closed for a new one.

A client uses a file descriptor from the moment it connects, long before it has shown a token. So an endpoint holds a
bounded number of connections, and waits only this long for a client:

    the head of a request          HEAD_S
    the body of a request          BODY_S, from the first byte of its head
    the next request               KEEP_ALIVE_S

If there is no room, the connection that has been idle longest is closed, so half-open connections cannot keep others
out. A connection whose request is being answered is never closed: if there are no others, the new one is refused.
"""

from __future__ import annotations

import asyncio
import resource
from collections import defaultdict
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Protocol

HEAD_S = 10.0
BODY_S = 30.0
KEEP_ALIVE_S = 75.0
SWEEP_S = 1.0
"""Seconds between two checks for overdue connections."""
MOST = 1024
"""Most connections of one endpoint. Fewer if the process may open few descriptors."""
FEWEST = 8


class Waits(Enum):
    """The part of a request that an endpoint awaits from a client."""

    HEAD = "head"
    BODY = "body"
    REQUEST = "request"
    """The next request. uvicorn closes such a connection first, unless its client does not read the response."""


DEADLINES = {Waits.HEAD: HEAD_S, Waits.BODY: BODY_S, Waits.REQUEST: KEEP_ALIVE_S + SWEEP_S}


class TrackedConnection(Protocol):
    """One connection as the table sees it."""

    peer: str
    since: float
    """Time on the loop's clock when the present wait began."""
    overdue: bool

    @property
    def waits(self) -> Waits | None:
        """Returns the part that the endpoint awaits from this client, or None while it answers a request."""
        ...

    def drop(self) -> None:
        """Closes the connection at once."""
        ...


class Connections:
    """All connections of one endpoint: at most `limit`, and at most `share` of these from one address."""

    def __init__(self, limit: int, *, share: float = 0.5) -> None:
        self._limit, self._limit_of_peer = limit, int(limit * share)
        self._all: dict[TrackedConnection, None] = {}
        self._peers: defaultdict[str, dict[TrackedConnection, None]] = defaultdict(dict)
        self._sweeping = False

    def __len__(self) -> int:
        return len(self._all)

    def admit(self, new: TrackedConnection) -> bool:
        """Adds the connection, and drops another one if there is no room. Returns False if it must be refused."""
        of_peer = self._peers[new.peer]
        for held, limit in ((of_peer, self._limit_of_peer), (self._all, self._limit)):
            if len(held) >= limit and not self._drop_longest_waiting(held):
                return False
        self._all[new] = self._peers[new.peer][new] = None
        if not self._sweeping:
            self._sweeping = True
            asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)
        return True

    def remove(self, connection: TrackedConnection) -> None:
        """Forgets a connection that has ended, or was never admitted."""
        self._all.pop(connection, None)
        of_peer = self._peers[connection.peer]
        of_peer.pop(connection, None)
        if not of_peer:
            del self._peers[connection.peer]

    def _drop_longest_waiting(self, held: Iterable[TrackedConnection]) -> bool:
        waiting = [connection for connection in held if connection.waits is not None]
        if not waiting:
            return False
        self._drop(min(waiting, key=lambda connection: connection.since))
        return True

    def _drop(self, connection: TrackedConnection) -> None:
        connection.drop()
        self.remove(connection)

    def _sweep(self) -> None:
        """Drops connections that two checks found overdue. After one, their bytes may still wait in the socket."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in list(self._all):
            waits = connection.waits
            late = waits is not None and now - connection.since > DEADLINES[waits]
            if late and connection.overdue:
                self._drop(connection)
            connection.overdue = late
        self._sweeping = bool(self._all)
        if self._sweeping:
            loop.call_later(SWEEP_S, self._sweep)


def connection_limit() -> int:
    """Returns the most connections that leave half of this process's free descriptors to everything else."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = allowed - sum(1 for _ in Path("/proc/self/fd").iterdir())
    return max(FEWEST, min(MOST, free // 2))
