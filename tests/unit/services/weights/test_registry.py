"""Who takes part in a round of a transfer, and how it ends for each."""

from services.records import Version
from services.weights.registry import SILENT_S, Participant, Round, TransferRegistry

VERSION = Version(incarnation=1, step=2, digest="d")


def round_of(*members: Participant) -> Round:
    return Round(version=VERSION, way="nccl", manifest=[], shares=[[]], members=list(members), seconds=1)


def test_members_are_those_that_called_lately():
    now = [0.0]
    registry = TransferRegistry(lambda: now[0])
    for name in ("b", "a"):
        assert registry.call(Participant(worker=name)) is None
    assert [member.worker for member in registry.members()] == ["a", "b"]
    now[0] = SILENT_S - 1
    registry.call(Participant(worker="b"))
    now[0] = SILENT_S
    assert [member.worker for member in registry.members()] == ["b"]
    registry.leave("b")
    registry.leave("nobody")
    assert registry.members() == []


def test_a_member_gets_a_round_until_it_has_reported_its_end():
    registry, one, two = TransferRegistry(), Participant(worker="one"), Participant(worker="two")
    registry.begin(transfer := round_of(one))
    assert registry.call(two) is None
    assert registry.call(one) == transfer
    registry.report("one", Version(incarnation=1, step=1), "of another round")
    assert registry.progress() == ({}, ["one"])
    registry.report("one", VERSION, "")
    assert registry.progress() == ({}, [])
    assert registry.call(one) is None
    registry.begin(round_of(one, two))
    assert registry.progress() == ({}, ["one", "two"])
    registry.report("one", VERSION, "no memory")
    registry.leave("two")
    assert registry.progress() == ({"one": "no memory", "two": "it is gone"}, [])
    registry.end()
    assert registry.call(two) is None


def test_a_registry_that_was_restarted_ends_the_round():
    """The weights actor that Ray creates again knows neither members nor round."""
    faults, waiting = TransferRegistry().progress()
    assert faults
    assert waiting == []


def test_processes_are_counted_over_all_members():
    transfer = round_of(Participant(worker="a", processes=2), Participant(worker="b", processes=3))
    assert transfer.receivers == 5
    assert [transfer.first_receiver(name) for name in ("a", "b", "c")] == [0, 2, None]
