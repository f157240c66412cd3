"""A fleet has the wanted number of members: new ones start, those beyond the number finish their work and leave."""

from __future__ import annotations

import pytest
from scripted_member import Scripted

from services.config.rollout import SupervisionSection
from services.controller.fleet import Fleet
from services.controller.member import End
from services.controller.supervise import Supervisor


class Crew:
    """A supervised fleet with a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events: list[str] = []
        self.notes: list[str] = []
        self.made: list[Scripted] = []
        self.supervisor = Supervisor(self.notes.append, SupervisionSection(drain_seconds=60), clock=lambda: self.now)
        self.fleet = Fleet(self.supervisor, self.make)

    def make(self, index: int) -> Scripted:
        self.made.append(Scripted(f"worker {index}", self.events))
        return self.made[-1]

    def want(self, count: int) -> list[str]:
        """Wants `count` members. Returns the events since the last call."""
        self.events.clear()
        self.fleet.want(count)
        self.supervisor.check()
        return list(self.events)

    def state(self, name: str) -> int:
        return self.supervisor.states()["rollout", name]


@pytest.fixture
def crew() -> Crew:
    return Crew()


def test_members_beyond_the_number_finish_their_work_before_they_leave(crew: Crew):
    assert crew.want(3) == ["start worker 0", "start worker 1", "start worker 2"]
    assert crew.want(1) == ["drain worker 2", "drain worker 1"]
    assert (crew.state("running"), crew.state("draining")) == (1, 2)
    crew.made[2].end = End("")
    assert crew.want(1) == ["stop worker 2"]
    assert crew.state("draining") == 1
    assert [one.name for one in crew.fleet.members] == ["worker 0"]


def test_a_number_is_not_used_again_while_its_member_drains(crew: Crew):
    crew.want(2)
    crew.want(1)
    assert crew.want(2) == ["start worker 2"]
    crew.made[1].end = End("")
    crew.want(2)
    assert crew.want(3) == ["start worker 1"]


def test_a_member_that_takes_too_long_to_leave_is_stopped(crew: Crew):
    crew.want(2)
    crew.want(1)
    crew.now = 59.0
    assert crew.want(1) == []
    crew.now = 61.0
    assert crew.want(1) == ["stop worker 1"]
    assert crew.notes == ["worker 1 finishes its work and leaves", "worker 1 was stopped after 60 s"]


def test_a_draining_member_that_dies_is_not_started_again(crew: Crew):
    crew.want(2)
    crew.want(1)
    crew.made[1].end = End("killed", killed=True)
    assert crew.want(1) == ["stop worker 1"]
    crew.now = 500.0
    assert crew.want(1) == []


def test_a_member_that_is_not_ready_yet_has_nothing_to_finish(crew: Crew):
    crew.want(1)
    crew.fleet.want(2)
    crew.made[1].answers = False
    assert crew.want(1) == ["stop worker 1"]
