"""The supervisor's record of one member."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal, get_args

from services.controller.member import Member

State = Literal["running", "starting", "unplaced", "sick", "draining"]
STATES: tuple[State, ...] = get_args(State)


@dataclass
class Watched:
    """A member, and the supervisor's knowledge of it. Times are seconds of the supervisor's clock."""

    member: Member
    changed_at: float
    """Time of the member's last start, or of its next start while `paused`."""
    paused: bool = True
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
    unplaced_at: float | None = None
    """Time since which the member waits for a place on the cluster."""
    told: bool = False
    """Whether it was reported that the member waits for a place."""
    drains_at: float | None = None
    """Time since which the member drains; None if it does not."""

    @property
    def may_work(self) -> bool:
        """Whether the member is in its first start, which has found its place: it may yet show that its role works."""
        return not self.deaths and self.unplaced_at is None and self.drains_at is None
