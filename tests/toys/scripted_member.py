"""A member of a run for the tests of supervision and fleets."""

from __future__ import annotations

from collections.abc import Callable

from services.controller.member import End


class Scripted:
    """A member that ends when told to, and records the order of its events."""

    def __init__(self, name: str, events: list[str], *, role: str = "rollout", beat: str | None = None) -> None:
        self.name, self.role, self.beat = name, role, beat
        self.events = events
        self.end: End | None = None
        self.answers = True
        self.needs = ""
        self.broken: Exception | None = None

    def start(self) -> None:
        self.end = None
        self.events.append(f"start {self.name}")
        if self.broken is not None:
            raise self.broken

    def ready(self) -> bool:
        return self.answers

    def lacks(self) -> str:
        return self.needs

    def poll(self) -> End | None:
        return self.end

    def drain(self) -> None:
        self.events.append(f"drain {self.name}")

    def stop(self) -> None:
        self.events.append(f"stop {self.name}")


class Acting(Scripted):
    """A member that calls `turn` at each poll, and ends with what it returns."""

    def __init__(self, name: str, turn: Callable[[], End | None]) -> None:
        super().__init__(name, [], role=name)
        self._turn = turn

    def poll(self) -> End | None:
        return self._turn()
