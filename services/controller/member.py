"""The contract between the supervisor and the processes that it keeps alive."""

from __future__ import annotations

from typing import NamedTuple, Protocol


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
        """Returns the resources that the cluster lacks for this member, "" once it has a place. Called until ready."""
        ...

    def poll(self) -> End | None:
        """Returns None while the member lives or waits for a place. Raises UserError if it found a user's mistake."""
        ...

    def drain(self) -> None:
        """Asks the member to finish its work, take no new work, and end. It is stopped if that takes too long."""
        ...

    def stop(self) -> None:
        """Ends the member. May be called again, and never raises for a member that has already ended."""
        ...
