"""The contract between the supervisor and the processes that it keeps alive."""

from __future__ import annotations

from typing import NamedTuple, Protocol


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

    def lacks(self) -> str:
        """Returns the resources that the cluster lacks to place it, or "" once it has a place. Called until ready."""
        ...

    def poll(self) -> End | None:
        """None while it lives or waits for a place. Raises UserError if it met a user's mistake."""
        ...

    def drain(self) -> None:
        """Asks it to finish its work, take nothing new, and end. It is stopped if that takes too long."""
        ...

    def stop(self) -> None:
        """Idempotent; never raises for a member that is gone already."""
        ...
