"""Keeps the members of a run alive: it restarts a member that dies, after pauses that grow with its deaths.

The supervisor does not depend on Ray or subprocesses: deploy/members/ wraps each kind of process as a Member.

- A member is *ready* once it has sent a heartbeat, or has answered if it sends none. It counts as dead if it ends, if
  it is not ready within supervision.start_seconds, or if it was ready and is silent for supervision.silence_seconds.
- After its first death within ten minutes a member is restarted at once. Before the next restarts the supervisor pauses
  for 1, 2, 4, ... seconds, up to supervision.longest_pause_seconds. From its third death on, the member is *sick*. The
  other members continue without it.
- A member that has no place on the cluster waits for one. After PLACE_S it reports what the cluster lacks. One member
  of each role asks before the others (member.py).
- Four things end the run: a user's mistake; a member that failed twice with the same message before any of its role
  was ever ready, once all of them have died or lack a place; a role without a ready member that got no place within
  supervision.place_seconds; and a crash loop: the only member of its role that works has died LOOP_DEATHS times with
  the same message, for LOOP_S or longer, while the run has made no progress. A process that was killed before its role
  was ready, or lost with its node, gave no message, so it is only restarted.

No call blocks: starts and ends show at the next check.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from services.config.tree import SupervisionSection
from services.controller.member import STATES, WINDOW_S, End, Member, State, Watched, gives_way, is_first
from services.errors import Fault, GagpoError, UserError, described
from services.telemetry.heartbeat import NO_SERVERS, all_do

LOOK_S = 2.0
"""Seconds between two reads of the heartbeats. They are sent as often, and each read is a round trip to the store."""
LOOP_DEATHS = 5
LOOP_S = 1800.0
"""Seconds that a crash loop lasts at least before it ends the run: as long as a wait for an unavailable folder."""
STALE_BEATS = 2
"""Heartbeats after a start that do not count: they may be the last ones of the member's former process, read late."""
LONGEST_GAP_S = 5.0
"""Most seconds of silence that count between two reads. A supervisor that was blocked has read no heartbeats."""
PLACE_S = 20.0
"""Seconds after which a member reports that it waits for a place. Some seconds are normal on a busy cluster."""
Beats = Callable[[], Mapping[str, Mapping[str, Any]]]
"""The last heartbeat of each living process, by name."""


class Supervisor:
    """Starts members in order, restarts them when they die, and stops them in reverse order of their roles."""

    def __init__(self, report: Callable[[str], object], settings: SupervisionSection, *, beats: Beats = dict,
                 ground: Callable[[], None] = lambda: None, milestone: Callable[[], object] = lambda: None,
                 clock: Callable[[], float] = time.monotonic) -> None:
        """`ground` raises once what all members need, such as a private Ray, is gone, so that none can be restarted.
        `milestone` returns how far the run is: a value that a replay does not change."""
        self._report = report
        self._check_ground = ground
        self._milestone = milestone
        self._settings = settings
        self._read_beats = beats
        self._clock = clock
        self._watched: list[Watched] = []
        self._beats: Mapping[str, Mapping[str, Any]] = {}
        self._looked_at = float("-inf")
        self._worked: set[str] = set()
        self.total_restarts = 0
        """Number of deaths after which a member is started again, over all members."""

    def add(self, member: Member) -> None:
        """Watches `member` from now on. The first one of a role starts at once, the others at the next check: before
        that the first one of another role may be added."""
        watched = Watched(member, self._clock())
        self._watched.append(watched)
        if is_first(watched, self._watched):
            self._start(watched)

    def remove(self, member: Member) -> None:
        """Stops `member` and forgets it."""
        self._watched = [w for w in self._watched if w.member is not member]
        self._stop(member)

    def retire(self, member: Member) -> None:
        """Lets `member` finish its work, then forgets it. A member that is not ready is stopped at once."""
        watched = next(w for w in self._watched if w.member is member)
        if not watched.ready:
            self.remove(member)
            return
        watched.drains_at = self._clock()
        self._report(f"{member.name} finishes its work and leaves")
        member.drain()

    def watches(self, member: Member) -> bool:
        """Whether the supervisor still watches `member`, which may be draining."""
        return any(w.member is member for w in self._watched)

    def wait(self, role: str) -> None:
        """Waits until all members of `role` are ready. Raises the same errors as `check`.

        Once one is ready, it no longer waits for members that lack a place or are sick: they may never get ready.
        """
        while any(not w.ready for w in self._watched if w.member.role == role and not (
                self._has_ready(role) and (w.logged or w.sick(self._clock())))):
            self.check()
            time.sleep(0.1)

    def check(self) -> None:
        """Checks the ground, then each member once.

        Raises a member's UserError, the Fault of the ground, or a Fault if a role cannot start, gets no place, or is in
        a crash loop.
        """
        self._check_ground()
        now = self._clock()
        gap = self._look(now)
        self._start_those_due(now)
        for watched in list(self._watched):
            if watched.drains_at is not None:
                self._let_go(watched, now)
                continue
            if watched.finished or watched.paused:
                continue
            end = watched.member.poll()
            if end is None and not self._wants_a_place(watched, now):
                end = self._overdue(watched, now, gap)
            if end is not None and end.reason:
                self._died(watched, end)
            elif end is not None:
                watched.finished = True

    def _start_those_due(self, now: float) -> None:
        # Members that have not failed come first, so that one on a broken node does not keep others from trying.
        for watched in sorted(self._watched, key=lambda one: len(one.deaths)):
            if watched.paused and now >= watched.changed_at and not gives_way(watched, self._watched):
                self._start(watched)

    def _look(self, now: float) -> float:
        """Reads the heartbeats if they are due. Returns the seconds of silence of a member that has sent none since."""
        gap = now - self._looked_at
        if gap < LOOK_S:
            return 0.0
        self._looked_at, self._beats = now, self._read_beats()
        return min(gap, LONGEST_GAP_S)

    def _let_go(self, watched: Watched, now: float) -> None:
        """Forgets a draining member once it has ended for any reason. Stops it if that takes too long."""
        assert watched.drains_at is not None
        end, late = watched.member.poll(), now - watched.drains_at > self._settings.drain_seconds
        if end is None and not late:
            return
        how = "has left" if end is not None else f"was stopped after {self._settings.drain_seconds:g} s"
        self._report(f"{watched.member.name} {how}" + (f" ({end.reason})" if end is not None and end.reason else ""))
        self._watched.remove(watched)
        self._stop(watched.member)

    def _wants_a_place(self, watched: Watched, now: float) -> bool:
        """Whether the member has no place on the cluster yet. Raises Fault if its entire role has waited too long."""
        lacks = "" if watched.ready else watched.member.lacks()
        if not lacks:
            if watched.logged:
                self._report(f"{watched.member.name} has its place")
            watched.unplaced_at, watched.logged, watched.placed = None, False, True
            return False
        watched.changed_at = now  # start_seconds count from when it has its place
        if watched.unplaced_at is None:
            watched.unplaced_at = now
        waited, role = now - watched.unplaced_at, watched.member.role
        if waited > PLACE_S and not watched.logged:
            watched.logged = True
            self._report(f"{watched.member.name} {lacks}; it waits")
        if waited > self._settings.place_seconds and not self._has_ready(role):
            raise Fault(f"{watched.member.name} {lacks}, and that has not changed for "
                        f"{self._settings.place_seconds:g} s (supervision.place_seconds)")
        return True

    def was_ready(self, member: Member) -> bool:
        """Whether `member` was ever ready, also before a restart."""
        return any(w.worked for w in self._watched if w.member is member)

    @property
    def beats(self) -> Mapping[str, Mapping[str, Any]]:
        """The last heartbeat of each living process, by name, from the latest read."""
        return self._beats

    def _has_ready(self, role: str) -> bool:
        return any(w.ready and w.drains_at is None for w in self._watched if w.member.role == role)

    def _overdue(self, watched: Watched, now: float, gap: float) -> End | None:
        """Returns the end of a member that hangs: its process lives but is not ready in time, or sends no heartbeat."""
        settings = self._settings
        if self._has_answered(watched):
            watched.ready = watched.worked = True
            watched.silence = 0.0
            self._worked.add(watched.member.role)
            return None
        if not watched.ready:
            reason = f"not ready within {settings.start_seconds:.0f} s (supervision.start_seconds)"
            return End(reason, killed=True) if now - watched.changed_at > settings.start_seconds else None
        watched.silence += gap
        reason = f"no heartbeat for {settings.silence_seconds:.0f} s (supervision.silence_seconds)"
        return End(reason, killed=True) if watched.silence > settings.silence_seconds else None

    def _has_answered(self, watched: Watched) -> bool:
        if watched.member.beat is None:
            return watched.ready or watched.member.ready()
        at = self._beats.get(watched.member.beat, {}).get("at")
        if at is None or at == watched.beat_at:
            return False
        watched.beat_at = at
        watched.beats += 1
        return watched.beats > STALE_BEATS

    def _start(self, watched: Watched) -> None:
        watched.paused, watched.silence, watched.beats, watched.changed_at = False, 0.0, 0, self._clock()
        watched.unplaced_at = None
        try:
            watched.member.start()
        except UserError:
            raise
        except Exception as error:
            self._died(watched, End(str(error) if isinstance(error, GagpoError) else described(error)))

    def _died(self, watched: Watched, end: End) -> None:
        self._refuse_a_hopeless_start(watched, end)
        self._refuse_a_crash_loop(watched, end)
        self.total_restarts += 1
        pause = watched.died(end, self._clock(), longest_pause=self._settings.longest_pause_seconds)
        count = len(watched.deaths)
        when = f" in {pause:.0f} s, after {count} deaths in {WINDOW_S / 60:.0f} minutes" if pause else ""
        self._report(f"{watched.member.name} died ({end.reason}); starting it again{when}")
        self._withdraw()  # before its place is free, which is for its role
        self._stop(watched.member)

    def _withdraw(self) -> None:
        """Lets members that wait for a place, and have to give way, ask for it later."""
        for watched in self._watched:
            if not (watched.paused or watched.placed) and gives_way(watched, self._watched):
                watched.pause(self._clock())
                self._stop(watched.member)

    def _refuse_a_crash_loop(self, watched: Watched, end: End) -> None:
        """Raises Fault if the member dies again and again in the same way, and the run makes no progress meanwhile."""
        state, now, member = (_message(end), self._milestone()), self._clock(), watched.member
        apart = end.killed and not any(now - death <= WINDOW_S for death in watched.deaths)  # kills by chance
        if watched.loop != state or apart:
            watched.loop, watched.loops, watched.looped_at = state, 0, now
        watched.loops += 1
        watched.ready = False
        lasted = now - watched.looped_at
        if watched.loops >= LOOP_DEATHS and lasted >= LOOP_S and not self._has_ready(member.role):
            raise Fault(f"{member.name} has died {watched.loops} times in {lasted / 60:.0f} minutes in the same way, "
                        f"and the run has made no progress meanwhile: {end.reason}")

    def _refuse_a_hopeless_start(self, watched: Watched, end: End) -> None:
        member = watched.member
        if member.role in self._worked or end.killed:
            return
        message = _message(end)
        again, watched.messages = message in watched.messages, watched.messages | {message}
        if again and not any(w.member.role == member.role and w.may_work for w in self._watched):
            raise Fault(f"{member.name} cannot start, it failed twice in the same way: {end.reason}")

    def finished(self, member: Member) -> bool:
        """Whether `member` has finished its work and ended by itself."""
        return any(w.finished for w in self._watched if w.member is member)

    @property
    def waits(self) -> bool:
        """Whether some role has no ready member. Then the run waits for one and cannot make progress."""
        roles = {w.member.role: False for w in self._watched}
        for watched in self._watched:
            roles[watched.member.role] |= (watched.ready or watched.finished) and watched.drains_at is None
        return not all(roles.values())

    @property
    def progress(self) -> dict[str, float]:
        """Time of each process's last progress (a turn, an update, a learner step), from its last heartbeat."""
        return {name: float(beat.get("progress", 0.0)) for name, beat in self._beats.items() if name != "controller"}

    @property
    def lacks_servers(self) -> bool:
        """Whether every rollout worker waits for environment servers."""
        return all_do(self._beats, "rollout", NO_SERVERS)

    def states(self) -> dict[tuple[str, State], int]:
        """Returns the number of members in each state, by role and state."""
        roles = {w.member.role for w in self._watched}
        counts: dict[tuple[str, State], int] = {(r, s): 0 for r in roles for s in STATES}
        for watched in self._watched:
            counts[watched.member.role, watched.state(self._clock())] += 1
        return counts

    def sick(self) -> list[str]:
        """Returns one line for each sick member."""
        now = self._clock()
        return [f"{w.member.name} died {len(w.deaths)} times in {WINDOW_S / 60:.0f} minutes, last: {w.last}"
                + (f"; starts again in {max(0.0, w.changed_at - now):.0f} s" if w.paused else "")
                for w in self._watched if w.sick(now)]

    def stop(self) -> None:
        """Stops all members: the last added role first, the members of a role at once. Reports one that cannot be
        stopped."""
        while self._watched:
            role = self._watched[-1].member.role
            last = [w.member for w in self._watched if w.member.role == role]
            self._watched = [w for w in self._watched if w.member.role != role]
            with ThreadPoolExecutor(len(last)) as pool:  # a server may take ten seconds to end
                list(pool.map(self._stop, last))

    def _stop(self, member: Member) -> None:
        try:
            member.stop()
        except (GagpoError, OSError, RuntimeError) as error:
            self._report(f"could not stop {member.name}: {error}")


def _message(end: End) -> str:
    """Returns the reason of an end without numbers: process ids and addresses differ from start to start."""
    return re.sub(r"[0-9]+", "#", end.reason)


Kind = TypeVar("Kind", bound=Member)


class Fleet(Generic[Kind]):
    """Members with the numbers 0, 1, 2, ... `make(number)` creates the member with that number.

    A draining member keeps its number, because it keeps its name, its port and its heartbeats until it is gone.
    """

    def __init__(self, supervisor: Supervisor, make: Callable[[int], Kind]) -> None:
        self._supervisor = supervisor
        self._make = make
        self._active: dict[int, Kind] = {}
        self._draining: dict[int, Kind] = {}

    @property
    def wanted(self) -> int:
        """Number of members that are not draining."""
        return len(self._active)

    @property
    def members(self) -> list[Kind]:
        """Members that are not draining, in the order of their numbers."""
        return [self._active[index] for index in sorted(self._active)]

    def want(self, count: int) -> None:
        """Adds members, or drains those with the highest numbers, until `count` are not draining."""
        self._draining = {index: one for index, one in self._draining.items() if self._supervisor.watches(one)}
        while len(self._active) < count:
            taken = {*self._active, *self._draining}
            index = next(i for i in range(count + len(self._draining)) if i not in taken)
            self._active[index] = self._make(index)
            self._supervisor.add(self._active[index])
        while len(self._active) > count:
            index = max(self._active)
            self._draining[index] = self._active.pop(index)
            self._supervisor.retire(self._draining[index])
