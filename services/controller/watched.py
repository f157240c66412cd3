"""One member as the supervisor sees it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal, get_args

from services.controller.member import Member

State = Literal["running", "starting", "unplaced", "sick", "draining"]
STATES: tuple[State, ...] = get_args(State)


@dataclass
class Watched:
    """A member, and what the supervisor knows of it."""

    member: Member
    changed_at: float
    """When it was started, or when it will be."""
    paused: bool = True
    ready: bool = False
    worked: bool = False
    """Whether it was ever ready."""
    finished: bool = False
    silence: float = 0.0
    beat_at: float | None = None
    """Time of its last heartbeat, by its own clock."""
    heard: int = 0
    """Heartbeats since it was started."""
    deaths: deque[float] = field(default_factory=deque)
    """Times of the deaths within WINDOW_S."""
    last: str = ""
    unplaced_at: float | None = None
    """Since when it waits for a place on the cluster."""
    told: bool = False
    """Whether it was said that it waits for a place."""
    drains_at: float | None = None
    """Since when it drains; None: it stays."""
