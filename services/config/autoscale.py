"""The `autoscale` section: bounds between which a run chooses its numbers of processes itself."""

from __future__ import annotations

from pydantic import Field, field_validator

from services.config.env import Section

Bounds = tuple[int, int]


class AutoscaleSection(Section):
    """Bounds between which the run chooses its numbers of processes. Without bounds a number changes only by
    `gagpo scale`."""

    rollout: Bounds | None = None
    """Fewest and most rollout workers, for example [1, 8]. None: no autoscaling."""
    env: Bounds | None = None
    """Fewest and most environment servers that the run starts. None: no autoscaling. A run of a live environment is
    refused with it: sessions of a server that leaves cannot be rebuilt."""
    ticket_wait_seconds: float = Field(default=30.0, gt=0)
    """More rollout workers are started if tickets wait for longer than this on average."""
    session_fill: float = Field(default=0.8, gt=0, le=1)
    """More environment servers are started if more than this share of their sessions is in use."""
    request_seconds: float = Field(default=1.0, gt=0)
    """More environment servers are started if requests take longer than this on average."""
    pause_seconds: float = Field(default=120.0, ge=1)
    """Seconds between two decisions about a role. A decision rests on all that was measured since the last one."""

    @field_validator("rollout", "env")
    @classmethod
    def _ordered(cls, bounds: Bounds | None) -> Bounds | None:
        if bounds is not None and not 1 <= bounds[0] <= bounds[1]:
            raise ValueError("it should be two numbers, the smaller one first and at least 1")
        return bounds
