"""A supervisor for tests, whose time and heartbeats they give."""

from __future__ import annotations

from scripted_member import Scripted

from services.config.tree import SupervisionSection
from services.controller.supervise import Supervisor

SETTINGS = SupervisionSection(start_seconds=100, place_seconds=500, silence_seconds=30, longest_pause_seconds=60)


class World:
    """A supervisor with a clock that a test moves, and heartbeats that it gives."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.events: list[str] = []
        self.notes: list[str] = []
        self.beating: set[str] = set()
        self.step = 0
        self.supervisor = Supervisor(
            self.notes.append, SETTINGS, clock=lambda: self.now, milestone=lambda: self.step,
            beats=lambda: {name: {"at": self.now} for name in self.beating})

    def add(self, name: str, **kind: str | None) -> Scripted:
        member = Scripted(name, self.events, **kind)
        self.supervisor.add(member)
        return member

    def check(self, seconds: float = 0.0, *, step: float = 1.0) -> None:
        """Lets time pass, with a check every `step` seconds and one at the end."""
        end = self.now + seconds
        while self.now < end:
            self.supervisor.check()
            self.now += step
        self.supervisor.check()
