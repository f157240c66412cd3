"""What dies is started again, and what dies too often stops the run."""

import pytest

from services.controller.supervise import MAX_RESTARTS, Supervisor
from services.errors import Fault


class Scripted:
    """A member that dies when told to, and records the order of its events."""

    def __init__(self, name: str, events: list[str]) -> None:
        self.name = name
        self.events = events
        self.state: str | None = None

    def start(self) -> None:
        self.state = None
        self.events.append(f"start {self.name}")

    def poll(self) -> str | None:
        return self.state

    def stop(self) -> None:
        self.events.append(f"stop {self.name}")


def test_a_dead_member_is_stopped_and_started_again() -> None:
    events: list[str] = []
    notes: list[str] = []
    supervisor, member = Supervisor(notes.append), Scripted("worker", events)
    supervisor.add(member)
    member.state = "killed"
    supervisor.check()
    supervisor.check()
    assert events == ["start worker", "stop worker", "start worker"]
    assert supervisor.total_restarts == 1
    assert "killed" in notes[0]


def test_a_member_that_finished_stays_finished() -> None:
    events: list[str] = []
    supervisor, member = Supervisor(lambda _: None), Scripted("learner", events)
    supervisor.add(member)
    member.state = ""
    supervisor.check()
    assert supervisor.finished(member)
    assert events == ["start learner"]


def test_deaths_without_end_stop_the_run_with_the_reason() -> None:
    supervisor, member = Supervisor(lambda _: None, clock=lambda: 0.0), Scripted("worker", [])
    supervisor.add(member)
    for _ in range(MAX_RESTARTS):
        member.state = "out of memory"
        supervisor.check()
    member.state = "out of memory"
    with pytest.raises(Fault, match=r"worker died 6 times.*out of memory"):
        supervisor.check()


def test_deaths_far_apart_are_forgiven() -> None:
    now = [0.0]
    supervisor, member = Supervisor(lambda _: None, clock=lambda: now[0]), Scripted("worker", [])
    supervisor.add(member)
    for _ in range(3 * MAX_RESTARTS):
        now[0] += 1000.0
        member.state = "killed"
        supervisor.check()
    assert supervisor.total_restarts == 3 * MAX_RESTARTS


def test_members_stop_in_reverse_order_and_one_failure_spares_none() -> None:
    events: list[str] = []
    notes: list[str] = []
    supervisor = Supervisor(notes.append)

    class Stubborn(Scripted):
        def stop(self) -> None:
            super().stop()
            raise OSError("will not die")

    for member in (Scripted("first", events), Stubborn("second", events), Scripted("third", events)):
        supervisor.add(member)
    supervisor.stop()
    assert events[3:] == ["stop third", "stop second", "stop first"]
    assert "second: will not die" in notes[0]
