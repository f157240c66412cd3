"""Who takes part in a round of a transfer, and how it ends for each."""

from services.records import Version
from services.weights.meeting import SILENT_S, Meeting
from services.weights.rounds import Participant, Round

VERSION = Version(incarnation=1, step=2, digest="d")


def of(*members: Participant) -> Round:
    return Round(version=VERSION, way="nccl", manifest=[], shares=[[]], members=list(members), seconds=1)


def test_members_are_those_who_called_lately():
    now = [0.0]
    meeting = Meeting(lambda: now[0])
    for name in ("b", "a"):
        assert meeting.call(Participant(worker=name)) is None
    assert [member.worker for member in meeting.members()] == ["a", "b"]
    now[0] = SILENT_S - 1
    meeting.call(Participant(worker="b"))
    now[0] = SILENT_S
    assert [member.worker for member in meeting.members()] == ["b"]
    meeting.leave("b")
    meeting.leave("nobody")
    assert meeting.members() == []


def test_a_member_hears_of_a_round_until_it_has_told_its_end():
    meeting, one, two = Meeting(), Participant(worker="one"), Participant(worker="two")
    meeting.begin(found := of(one))
    assert meeting.call(two) is None
    assert meeting.call(one) == found
    meeting.tell("one", Version(incarnation=1, step=1), "of another round")
    assert meeting.outcomes() == {}
    meeting.tell("one", VERSION, "")
    assert meeting.outcomes() == {"one": ""}
    assert meeting.call(one) is None
    meeting.begin(of(one, two))
    assert meeting.outcomes() == {}
    meeting.end()
    assert meeting.call(one) is None


def test_processes_are_counted_over_all_members():
    found = of(Participant(worker="a", processes=2), Participant(worker="b", processes=3))
    assert found.receivers == 5
    assert [found.first_receiver(name) for name in ("a", "b", "c")] == [0, 2, None]
