"""The processes that the supervisor keeps alive: their contract with it, and its record of each."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, get_args


class End(NamedTuple):
    """How a member ended."""

    reason: str
    """Empty if it finished its work."""
    killed: bool = False
    """Whether the member was killed, lost or given up, so that it could not say why it ended."""


class Member(Protocol):
    """One process, or a rank group: several processes that start and end together."""

    name: str
    role: str
    """One of `environment`, `rollout`, `learner`. Members of one role can replace each other."""
    beat: str | None
    """Name of the member's heartbeats; None if it sends none."""

    def start(self) -> None:
        """Starts the member without waiting for it. Any exception counts as a death, but a UserError ends the run."""
        ...

    def ready(self) -> bool:
        """Whether the member answers. Called only for members without heartbeats."""
        ...

    def lacks(self) -> str:
        """Returns what the cluster lacks for this member, to follow its name in a sentence; "" once it has a place.
        Called until ready."""
        ...

    def poll(self) -> End | None:
        """Returns None while the member lives or waits for a place. Raises UserError if it met a user's mistake."""
        ...

    def drain(self) -> None:
        """Asks the member to finish its work, take no new work, and end. It is stopped if that takes too long."""
        ...

    def stop(self) -> None:
        """Ends the member. May be called again, and never raises for a member that has already ended."""
        ...


WINDOW_S = 600.0
SICK_AFTER = 3

State = Literal["running", "starting", "unplaced", "sick", "draining"]
STATES: tuple[State, ...] = get_args(State)


@dataclass
class Watched:
    """The supervisor's record of a member. Times are seconds of the supervisor's clock."""

    member: Member
    changed_at: float
    """Time from which start_seconds count: that of the last start, or while the member waits for a place, of the last
    check. While `paused`: the time of the next start."""
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
    beats: int = 0
    """Number of heartbeats since the last start."""
    deaths: deque[float] = field(default_factory=deque)
    """Times of the deaths within WINDOW_S."""
    last: str = ""
    messages: set[str] = field(default_factory=set)
    """Messages of its failures, without numbers, before its role worked. All are kept, because a message may name a
    node, and the member may start on another one in between."""
    loop: object = None
    """Message of its last death, and how far the run was."""
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
        """Whether the member is in its first start and not known to lack a place, so that it may yet show that its role
        works."""
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
        """Whether the member has died SICK_AFTER times within WINDOW_S."""
        return sum(now - death <= WINDOW_S for death in self.deaths) >= SICK_AFTER

    def state(self, now: float) -> State:
        """Returns the state that is shown to people."""
        if self.drains_at is not None:
            return "draining"
        if self.sick(now):
            return "sick"
        if self.ready or self.finished:
            return "running"
        return "starting" if self.unplaced_at is None else "unplaced"


# Which members ask for their place on a cluster first: one of each role, then the others.
#
# The learner's ranks need many places together, rollout workers one each. If all workers asked first, Ray would spread
# them over all nodes, and the ranks would get the rest of each. After the loss of a node, the lost workers would
# take the places that the ranks have just freed. If all ranks asked first, there might be no place left for a single
# worker.


def is_first(one: Watched, among: Iterable[Watched]) -> bool:
    """Whether no other member of its role has a place or asks for one."""
    return all(w is one or w.paused or w.member.role != one.member.role for w in among)


def gives_way(one: Watched, among: Sequence[Watched]) -> bool:
    """Whether a member asks for no place for now, because some other role has no member with a place."""
    placed = {w.member.role for w in among if w.placed or w.finished}
    return not is_first(one, among) and any(w.member.role not in {*placed, one.member.role} for w in among)
