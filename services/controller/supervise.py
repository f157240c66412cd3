"""Keeps the members of a run alive: a member that dies is started again, after pauses that grow with its deaths.

The supervisor knows nothing of Ray or subprocesses; deploy/launch/processes.py wraps each kind as a Member.

- A member is *ready* once it gives a sign of life. It counts as dead when it ends, when it is not ready within
  supervision.start_seconds, and when it was ready and is then silent for supervision.silence_seconds.
- After its first death within ten minutes a member is started at once, after the next ones with pauses of 1, 2, 4, ...
  seconds, up to supervision.longest_pause_seconds. From the third on it is *sick*. The others go on without it.
- Two things end the run: a user's mistake, and a role whose members failed twice with the same words before any of
  them was ever ready. A process that was killed, or lost with its node, has said nothing: it is only started again.

No call waits: starting and ending show at the next check.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from services.config.tree import SupervisionSection
from services.errors import Fault, GagpoError, UserError, described

WINDOW_S = 600.0
SICK_AFTER = 3
LOOK_S = 2.0
"""Heartbeats come as often as this, and reading them costs a round trip."""
STALE_BEATS = 2
"""The first heartbeats after a start may be the last ones of the life before, read late."""
LONGEST_GAP_S = 5.0
"""At most so much silence is counted between two looks: members are not silent while the supervisor looks away."""
State = Literal["running", "starting", "sick"]
Beats = Callable[[], Mapping[str, Mapping[str, Any]]]
"""The last heartbeat of each living process, by name."""


class End(NamedTuple):
    """How a member ended."""

    reason: str
    """Empty if it finished its work."""
    killed: bool = False
    """It was killed, lost or given up, and did not say why itself."""


class Member(Protocol):
    """One process, or a gang that lives and dies together."""

    name: str
    role: str
    """Members of one role can stand in for each other: `environment`, `rollout`, `learner`."""
    beat: str | None
    """The name of its heartbeats; None: it sends none."""

    def start(self) -> None:
        """Begins to start, without waiting. Whatever it raises counts as a death; a UserError ends the run."""
        ...

    def ready(self) -> bool:
        """For members without heartbeats: whether it answers."""
        ...

    def poll(self) -> End | None:
        """None while it lives. Raises UserError if it met a user's mistake."""
        ...

    def stop(self) -> None:
        """Idempotent; never raises for a member that is gone already."""
        ...


@dataclass
class Watched:
    """A member, and what the supervisor knows of it."""

    member: Member
    changed_at: float
    """When it was started, or when it will be."""
    paused: bool = True
    ready: bool = False
    finished: bool = False
    silence: float = 0.0
    beat_at: float | None = None
    """Time of its last heartbeat, by its own clock."""
    heard: int = 0
    """Heartbeats since it was started."""
    deaths: deque[float] = field(default_factory=deque)
    """Times of the deaths within WINDOW_S."""
    last: str = ""


class Supervisor:
    """Starts members in order, starts them again when they die, stops them in reverse order."""

    def __init__(self, report: Callable[[str], None], settings: SupervisionSection, *, beats: Beats = dict,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._report = report
        self._settings = settings
        self._read_beats = beats
        self._clock = clock
        self._watched: list[Watched] = []
        self._beats: Mapping[str, Mapping[str, Any]] = {}
        self._looked_at = float("-inf")
        self._worked: set[str] = set()
        self._first_words: dict[str, str] = {}
        self.total_restarts = 0
        """Starts after a death, of all members."""

    def add(self, member: Member) -> None:
        """Starts `member` and watches it from now on."""
        watched = Watched(member, self._clock())
        self._watched.append(watched)
        self._start(watched)

    def remove(self, member: Member) -> None:
        """Stops `member` and forgets it."""
        self._watched = [w for w in self._watched if w.member is not member]
        member.stop()

    def wait(self, role: str) -> None:
        """Until all members of `role` are ready. Raises as `check` does."""
        while any(not w.ready for w in self._watched if w.member.role == role):
            self.check()
            time.sleep(0.1)

    def check(self) -> None:
        """Looks after each member once. Raises UserError, or the Fault of a role that cannot start."""
        now = self._clock()
        gap = self._look(now)
        for watched in self._watched:
            if watched.finished:
                continue
            if watched.paused:
                if now >= watched.changed_at:
                    self.total_restarts += 1
                    self._start(watched)
                continue
            end = watched.member.poll() or self._overdue(watched, now, gap)
            if end is not None and end.reason:
                self._died(watched, end)
            elif end is not None:
                watched.finished = True

    def _look(self, now: float) -> float:
        """Reads the heartbeats when they are due. Returns the seconds to count as silence of who sent none."""
        gap = now - self._looked_at
        if gap < LOOK_S:
            return 0.0
        self._looked_at, self._beats = now, self._read_beats()
        return min(gap, LONGEST_GAP_S)

    def _overdue(self, watched: Watched, now: float, gap: float) -> End | None:
        """The end of a member that hangs: one that is alive and gives no sign of it."""
        settings = self._settings
        if self._gave_a_sign(watched):
            watched.ready, watched.silence = True, 0.0
            self._worked.add(watched.member.role)
            return None
        if not watched.ready:
            late = now - watched.changed_at > settings.start_seconds
            return End(f"not ready within {settings.start_seconds:.0f} s", killed=True) if late else None
        watched.silence += gap
        silent = watched.silence > settings.silence_seconds
        return End(f"no heartbeat for {settings.silence_seconds:.0f} s", killed=True) if silent else None

    def _gave_a_sign(self, watched: Watched) -> bool:
        if watched.member.beat is None:
            return watched.ready or watched.member.ready()
        at = self._beats.get(watched.member.beat, {}).get("at")
        if at is None or at == watched.beat_at:
            return False
        watched.beat_at = at
        watched.heard += 1
        return watched.heard > STALE_BEATS

    def _start(self, watched: Watched) -> None:
        watched.paused, watched.silence, watched.heard, watched.changed_at = False, 0.0, 0, self._clock()
        try:
            watched.member.start()
        except UserError:
            raise
        except Exception as error:
            self._died(watched, End(str(error) if isinstance(error, GagpoError) else described(error)))

    def _died(self, watched: Watched, end: End) -> None:
        self._refuse_a_hopeless_start(watched.member, end)
        now = self._clock()
        _forget_old(watched.deaths, now)
        watched.deaths.append(now)
        count = len(watched.deaths)
        pause = 0.0 if count == 1 else min(2.0 ** (count - 2), self._settings.longest_pause_seconds)
        watched.paused, watched.ready, watched.last = True, False, end.reason
        watched.changed_at = now + pause
        when = f" in {pause:.0f} s, after {count} deaths in {WINDOW_S / 60:.0f} minutes" if pause else ""
        self._report(f"{watched.member.name} died ({end.reason}); starting it again{when}")
        self._stop(watched.member)

    def _refuse_a_hopeless_start(self, member: Member, end: End) -> None:
        if member.role in self._worked or end.killed:
            return
        words = re.sub(r"[0-9]+", "#", end.reason)  # process ids and addresses differ from start to start
        if self._first_words.get(member.role) == words:
            raise Fault(f"{member.name} cannot start, it failed twice in the same way: {end.reason}")
        self._first_words[member.role] = words

    def finished(self, member: Member) -> bool:
        """True once `member` ended its work by itself."""
        return any(w.finished for w in self._watched if w.member is member)

    @property
    def waits(self) -> bool:
        """Whether some role has no member that is ready: then the run waits for one and cannot move."""
        roles = {w.member.role: False for w in self._watched}
        for watched in self._watched:
            roles[watched.member.role] |= watched.ready or watched.finished
        return not all(roles.values())

    @property
    def progress(self) -> dict[str, float]:
        """When each process got something done last, as its last heartbeat says: a turn, an update, a learner step."""
        return {name: float(beat.get("progress", 0.0)) for name, beat in self._beats.items() if name != "controller"}

    def states(self) -> dict[tuple[str, State], int]:
        """How many members of each role are in each state."""
        roles = {w.member.role for w in self._watched}
        counts: dict[tuple[str, State], int] = {(r, s): 0 for r in roles for s in ("running", "starting", "sick")}
        for watched in self._watched:
            state = "sick" if self._sick(watched) else "running" if watched.ready or watched.finished else "starting"
            counts[watched.member.role, state] += 1
        return counts

    def sick(self) -> list[str]:
        """One line for each member that dies again and again."""
        now = self._clock()
        return [f"{w.member.name} died {len(w.deaths)} times in {WINDOW_S / 60:.0f} minutes, last: {w.last}"
                + (f"; starts again in {max(0.0, w.changed_at - now):.0f} s" if w.paused else "")
                for w in self._watched if self._sick(w)]

    def _sick(self, watched: Watched) -> bool:
        recent = sum(self._clock() - death <= WINDOW_S for death in watched.deaths)
        return recent >= SICK_AFTER

    def stop(self) -> None:
        """Stops all members, last started first; a failure to stop one does not spare the others."""
        while self._watched:
            self._stop(self._watched.pop().member)

    def _stop(self, member: Member) -> None:
        try:
            member.stop()
        except (GagpoError, OSError, RuntimeError) as error:
            self._report(f"could not stop {member.name}: {error}")


def _forget_old(deaths: deque[float], now: float) -> None:
    while deaths and now - deaths[0] > WINDOW_S:
        deaths.popleft()
