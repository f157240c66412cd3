"""Keeps the members of a run alive: what dies is started anew, what dies too often stops the run by name.

The supervisor knows nothing of Ray or subprocesses; deploy/launch/processes.py wraps each kind as a Member.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from services.errors import Fault, GagpoError

MAX_RESTARTS = 5
WINDOW_S = 600.0


class Member(Protocol):
    """One process, or a gang that lives and dies together."""

    name: str

    def start(self) -> None:
        """Returns once started; raises a Fault when it cannot be."""
        ...

    def poll(self) -> str | None:
        """None while it lives, `""` once it has finished its work, else why it died."""
        ...

    def stop(self) -> None:
        """Idempotent; never raises for a member that is gone already."""
        ...


@dataclass
class Watched:
    """A member and the times of its recent restarts."""

    member: Member
    restarts: deque[float] = field(default_factory=deque)
    total_restarts: int = 0
    finished: bool = False


class Supervisor:
    """Starts members in order, restarts them on death, stops them in reverse order."""

    def __init__(self, report: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._watched: list[Watched] = []
        self._report = report
        self._clock = clock

    def add(self, member: Member) -> None:
        """Starts `member` and watches it from now on."""
        member.start()
        self._watched.append(Watched(member))

    def remove(self, member: Member) -> None:
        """Stops `member` and forgets it."""
        self._watched = [w for w in self._watched if w.member is not member]
        member.stop()

    def check(self) -> None:
        """Restarts the dead. Raises Fault, with the last reason, on more than 5 deaths of one member in 10 minutes."""
        for watched in self._watched:
            if watched.finished:
                continue
            reason = watched.member.poll()
            if reason is None:
                continue
            if reason == "":
                watched.finished = True
                continue
            self._restart(watched, reason)

    def _restart(self, watched: Watched, reason: str) -> None:
        now = self._clock()
        while watched.restarts and now - watched.restarts[0] > WINDOW_S:
            watched.restarts.popleft()
        if len(watched.restarts) >= MAX_RESTARTS:
            raise Fault(f"{watched.member.name} died {MAX_RESTARTS + 1} times in {WINDOW_S:.0f} s, last: {reason}")
        watched.restarts.append(now)
        watched.total_restarts += 1
        self._report(f"{watched.member.name} died ({reason}); starting it again")
        watched.member.stop()
        watched.member.start()

    def finished(self, member: Member) -> bool:
        """True once `member` ended its work by itself."""
        return any(w.finished for w in self._watched if w.member is member)

    @property
    def total_restarts(self) -> int:
        """Deaths mended so far, of all members."""
        return sum(w.total_restarts for w in self._watched)

    def stop(self) -> None:
        """Stops all members, last started first; a failure to stop one does not spare the others."""
        failures: list[str] = []
        while self._watched:
            member = self._watched.pop().member
            try:
                member.stop()
            except (GagpoError, OSError, RuntimeError) as error:
                failures.append(f"{member.name}: {error}")
        if failures:
            self._report("could not stop " + "; ".join(failures))
