"""The supervisor's record of one member."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from services.controller.member import End, Member

# Which members ask for their place on a cluster first: one of each role, then the others.
#
# The learner's ranks need many places together, rollout workers one each. If all workers asked first, Ray would spread
# them over all nodes, and the ranks would get what is left of each. After the loss of a node, the lost workers would
# take the places that the ranks have just left. If all ranks asked first, there might be no place left for a single
# worker.

def is_first(one: Watched, among: Iterable[Watched]) -> bool:
    """Whether no other member of its role has a place or asks for one."""
    return all(w is one or w.paused or w.member.role != one.member.role for w in among)


def gives_way(one: Watched, among: Sequence[Watched]) -> bool:
    """Whether a member asks for no place for now, because some other role has no member with a place."""
    placed = {w.member.role for w in among if w.placed or w.finished}
    return not is_first(one, among) and any(w.member.role not in {*placed, one.member.role} for w in among)


WINDOW_S = 600.0
SICK_AFTER = 3

State = Literal["running", "starting", "unplaced", "sick", "draining"]
STATES: tuple[State, ...] = get_args(State)


@dataclass
class Watched:
    """A member, and the supervisor's knowledge of it. Times are seconds of the supervisor's clock."""

    member: Member
    changed_at: float
    """Time of the member's last start, or of its next start while `paused`."""
    paused: bool = True
    placed: bool = False
    """Whether the member has its place on the cluster."""
    ready: bool = False
    worked: bool = False
    """Whether the member was ever ready."""
    finished: bool = False
    silence: float = 0.0
    beat_at: float | None = None
    """Time of the member's last heartbeat, by the member's own clock."""
    heard: int = 0
    """Number of heartbeats since the last start."""
    deaths: deque[float] = field(default_factory=deque)
    """Times of the deaths within WINDOW_S."""
    last: str = ""
    words: set[str] = field(default_factory=set)
    """The words of its failures, without numbers, before its role worked. All are kept, because words may name a node,
    and the member may start on another one in between."""
    loop: object = None
    """The words of its last death, and how far the run was."""
    loops: int = 0
    """Number of deaths in a row with the same `loop`."""
    looped_at: float = 0.0
    """Time of the first of them."""
    unplaced_at: float | None = None
    """Time since which the member waits for a place on the cluster."""
    logged: bool = False
    """Whether it was reported that the member waits for a place."""
    drains_at: float | None = None
    """Time since which the member drains; None if it does not."""

    @property
    def may_work(self) -> bool:
        """Whether the member is in its first start, which has found its place: it may yet show that its role works."""
        return not self.deaths and not self.paused and self.unplaced_at is None and self.drains_at is None

    def died(self, end: End, now: float, *, longest_pause: float) -> float:
        """Notes a death. Returns the seconds until the next start."""
        while self.deaths and now - self.deaths[0] > WINDOW_S:
            self.deaths.popleft()
        self.deaths.append(now)
        count = len(self.deaths)
        pause = 0.0 if count == 1 else min(2.0 ** (count - 2), longest_pause)
        self.ready, self.last = False, end.reason
        self.pause(now + pause)
        return pause

    def pause(self, until: float) -> None:
        """Notes that the member is to be started at a later time, and has no place until then."""
        self.paused, self.placed, self.changed_at = True, False, until

    def sick(self, now: float) -> bool:
        """Whether the member has died often of late."""
        return sum(now - death <= WINDOW_S for death in self.deaths) >= SICK_AFTER

    def state(self, now: float) -> State:
        """Returns the state that people see."""
        if self.drains_at is not None:
            return "draining"
        if self.sick(now):
            return "sick"
        if self.ready or self.finished:
            return "running"
        return "starting" if self.unplaced_at is None else "unplaced"
