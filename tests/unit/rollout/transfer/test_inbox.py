"""Two senders and two receivers of one process, over gloo and over shared host memory: the code that GPUs run too."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import pytest
import torch

from rollout.transfer.inbox import HELD, RECEIVING, Inbox
from rollout.transfer.version_part import VersionPart
from services.process.rendezvous import Rendezvous
from services.records import Version
from services.weights import links
from services.weights.checksum import combined, element_sum
from services.weights.links import Link, RoundEnd
from services.weights.pack import layout
from services.weights.rounds import Participant, Round, ShardRows, check_whole, elements, places
from services.weights.shared_memory import exported

CPU = torch.device("cpu")
SECONDS = 120.0
"""Longer than any of these takes on a busy machine."""


def weights(seed: int) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return {"a": torch.randn(13, 6, generator=random), "b": torch.randn(5, generator=random).bfloat16(),
            "c": torch.randn(8, 3, 2, generator=random), "d": torch.tensor(float(seed))}


MANIFEST, _ = layout((name, tuple(t.shape), str(t.dtype)[6:]) for name, t in weights(0).items())
SHARDS = [[ShardRows(0, 0, 7), ShardRows(1, 0, 3), ShardRows(2, 0, 4), ShardRows(3, 0, 1)],
          [ShardRows(0, 7, 6), ShardRows(1, 3, 2), ShardRows(2, 4, 4)]]
WHOLE = [ShardRows(index, 0, entry.shape[0] if entry.shape else 1) for index, entry in enumerate(MANIFEST)]
MEMBERS = [Participant(worker="one"), Participant(worker="two", shared_gpu=1)]


def stream_of(tensors, share) -> torch.Tensor:
    offsets, size = places(MANIFEST, share)
    stream = torch.zeros(size, dtype=torch.uint8)
    for piece, at in zip(share, offsets, strict=True):
        rows = torch.atleast_1d(tensors[MANIFEST[piece.tensor].name])[piece.first : piece.first + piece.rows]
        flat = rows.contiguous().reshape(-1).view(torch.uint8)
        stream[at : at + len(flat)] = flat
    return stream


def version_of(tensors, step: int) -> Version:
    return Version(incarnation=1, step=step, digest=combined(
        MANIFEST, [int(element_sum(tensors[entry.name], 0)) for entry in MANIFEST]))


def over(inboxes: list[Inbox]) -> list[str]:
    for inbox in inboxes:
        inbox._thread.join()
    assert RECEIVING not in [inbox.state() for inbox in inboxes]
    return [inbox.state() for inbox in inboxes]


class Senders:
    """Two senders, each in a thread: learner/weights/sender.py without a model."""

    def __init__(self) -> None:
        self.links: list[Link | None] = [None, None]

    def send(self, found: Round, tensors, meeting: Rendezvous, *, damage: int | None = None,
             lost: Callable[[], str] = str) -> list[BaseException]:
        faults: list[BaseException] = []

        def one(index: int) -> None:
            end = RoundEnd(found.seconds, str if index else lost)
            try:
                if self.links[index] is None:
                    own = meeting if index == 0 else Rendezvous("127.0.0.1", index, 2 + found.receivers)
                    store = own.join(found.group, SECONDS)
                    end.meets(store, found.version.name)
                    self.links[index] = Link(store, str(index), rank=0, world=1 + found.receivers, device=CPU, end=end)
                stream = stream_of(tensors, found.shares[index])
                if damage is not None and index == 1:
                    stream[damage] ^= 1
                self.links[index].send(stream, end)
            except (RuntimeError, TimeoutError) as fault:
                faults.append(fault)
                self.links[index], link = None, self.links[index]
                if link is not None:
                    link.close()

        threads = [threading.Thread(target=one, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return faults


def by_links(step: int, *, group: str, seconds: float = SECONDS, members=MEMBERS) -> Round:
    return Round(version=version_of(weights(step), step), way="nccl", manifest=MANIFEST, shares=SHARDS, group=group,
                 members=members, seconds=seconds)


def begin(inboxes, found: Round) -> None:
    for number, (inbox, member) in enumerate(zip(inboxes, found.members, strict=False)):
        inbox.begin(found, receiver=number, shared_gpu=member.shared_gpu, address="127.0.0.1")


def assert_holds(inbox: Inbox, found: Round) -> None:
    held, expected = inbox.held(found.version.name), weights(found.version.step)
    assert held.names == sorted(expected)
    for name, tensor in expected.items():
        assert held.whole(name).dtype == tensor.dtype
        assert torch.equal(held.whole(name), tensor), name


@pytest.fixture
def own_folder(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.mark.parametrize("bucket", [32, links.BUCKET])
def test_shards_of_two_senders_become_the_same_tensors_on_two_receivers_again_and_again(
        own_folder, bucket, monkeypatch):
    monkeypatch.setattr(links, "BUCKET", bucket)
    meeting, senders, inboxes = Rendezvous("127.0.0.1", 0, 4), Senders(), [Inbox(CPU), Inbox(CPU)]
    group = meeting.offer()
    for step in (1, 2):
        found = by_links(step, group=group)
        begin(inboxes, found)
        assert senders.send(found, weights(step), meeting) == []
        assert over(inboxes) == [HELD, HELD]
        for inbox in inboxes:
            assert_holds(inbox, found)
            with pytest.raises(ValueError, match="is not held"):
                inbox.held(by_links(3, group=group).version.name)
    for inbox in inboxes:
        inbox.close()


def test_a_changed_byte_is_refused_and_the_next_version_comes_over_new_links(own_folder):
    meeting, senders, inboxes = Rendezvous("127.0.0.1", 0, 4), Senders(), [Inbox(CPU), Inbox(CPU)]
    found = by_links(1, group=meeting.offer())
    begin(inboxes, found)
    assert senders.send(found, weights(1), meeting, damage=5) == []
    for state in over(inboxes):
        assert state.startswith("ValueError: weights arrived with digest sums-")
    with pytest.raises(ValueError, match="is not held"):
        inboxes[0].held(found.version.name)
    again, senders = Rendezvous("127.0.0.1", 0, 4), Senders()
    found = by_links(2, group=again.offer())
    begin(inboxes, found)
    assert senders.send(found, weights(2), again) == []
    assert over(inboxes) == [HELD, HELD]
    assert_holds(inboxes[1], found)


def test_a_receiver_that_never_comes_holds_nobody_beyond_the_deadline(own_folder):
    meeting, senders, inbox = Rendezvous("127.0.0.1", 0, 4), Senders(), Inbox(CPU)
    found = by_links(1, group=meeting.offer(), seconds=2.0)
    begin([inbox], found)
    assert len(senders.send(found, weights(1), meeting)) == 2
    (state,) = over([inbox])
    assert state != HELD


def test_the_processes_of_an_engine_keep_a_part_each_and_gather_whole_tensors(own_folder, monkeypatch):
    """Lengths that three does not divide, and buckets that end inside the runs of a tensor."""
    monkeypatch.setattr(links, "BUCKET", 32)
    meeting, senders = Rendezvous("127.0.0.1", 0, 5), Senders()
    engine = [Inbox(CPU, index=index, count=3) for index in range(3)]
    group, members = meeting.offer(), [Participant(worker="one", processes=3)]
    for step in (1, 2):
        found = by_links(step, group=group, members=members)
        for number, inbox in enumerate(engine):
            inbox.begin(found, receiver=number, shared_gpu=0, address="127.0.0.1")
        assert senders.send(found, weights(step), meeting) == []
        assert over(engine) == [HELD] * 3
        parts = [inbox.held(found.version.name) for inbox in engine]
        for name, tensor in weights(step).items():
            assert all(torch.equal(whole, tensor) for whole in gathered(parts, name)), name
    assert all(len(part.memory) < places(MANIFEST, WHOLE)[1] for part in parts)


def gathered(parts: list[VersionPart], name: str) -> list[torch.Tensor]:
    """Returns the tensor as each process puts it together, all at the same time."""
    runs: dict[int, torch.Tensor] = {}
    all_there = threading.Barrier(len(parts))

    def gather(index: int, run: torch.Tensor) -> torch.Tensor:
        runs[index] = run
        all_there.wait(SECONDS)
        return torch.cat([runs[other] for other in range(len(parts))])

    with ThreadPoolExecutor(len(parts)) as pool:
        return list(pool.map(lambda index: parts[index].whole(name, partial(gather, index)), range(len(parts))))


def test_a_receiver_that_stops_inside_a_broadcast_ends_the_round_once_it_is_missed(own_folder, monkeypatch):
    """It keeps its links open and reads nothing, as a process that NCCL cannot tell from a dead one. The deadline is
    longer than the test may take.
    """
    monkeypatch.setattr(links, "BUCKET", 32)
    linked = threading.Event()

    class Stopped(Inbox):
        def _receive(self, found, read, receiver, address):
            self._linked(found, receiver, address, RoundEnd(found.seconds))
            linked.set()

    meeting, senders, inbox, stopped = Rendezvous("127.0.0.1", 0, 4), Senders(), Inbox(CPU), Stopped(CPU)
    found = by_links(1, group=meeting.offer(), seconds=3600)
    begin([inbox, stopped], found)
    faults = senders.send(found, weights(1), meeting, lost=lambda: "two: it is gone" if linked.is_set() else "")
    assert [str(fault) for fault in faults] == ["two: it is gone"] * 2
    assert over([inbox]) == ["RuntimeError: two: it is gone"]
    stopped.close()  # else the others' broadcasts would never be over

    again = Rendezvous("127.0.0.1", 0, 3)
    found = by_links(2, group=again.offer(), members=MEMBERS[:1])
    begin([inbox], found)
    assert senders.send(found, weights(2), again) == []
    assert over([inbox]) == [HELD]
    assert_holds(inbox, found)


def test_a_receiver_that_is_missed_before_it_joins_ends_the_round(own_folder):
    meeting, senders, inbox = Rendezvous("127.0.0.1", 0, 4), Senders(), Inbox(CPU)
    found = by_links(1, group=meeting.offer(), seconds=3600)
    begin([inbox], found)
    faults = senders.send(found, weights(1), meeting, lost=lambda: "two: it is gone")
    assert [str(fault) for fault in faults] == ["two: it is gone"] * 2
    assert over([inbox]) == ["RuntimeError: two: it is gone"]


def test_a_sampler_reads_whole_tensors_from_the_memory_of_the_rank_on_its_gpu():
    tensors, inboxes = [weights(1), weights(1)], [Inbox(CPU), Inbox(CPU)]
    with ExitStack() as held:
        handles = []
        for mine in tensors:
            stream, share = held.enter_context(exported(places(MANIFEST, WHOLE)[1], CPU))
            stream.copy_(stream_of(mine, WHOLE))
            handles.append(share())
        found = Round(version=version_of(weights(1), 1), way="ipc", manifest=MANIFEST, shares=[WHOLE, WHOLE],
                      handles=handles, members=MEMBERS, seconds=SECONDS)
        begin(inboxes, found)
        assert over(inboxes) == [HELD, HELD]
        stream[0] ^= 1  # the memory of the second rank
        again = [Inbox(CPU), Inbox(CPU)]
        begin(again, found)
        first, second = over(again)
    assert first == HELD
    assert second.startswith("ValueError: weights arrived")
    for inbox in inboxes:
        assert_holds(inbox, found)  # a copy, which outlives the learner's memory


@pytest.mark.parametrize("length", [8, 64, 1 << 20])
def test_a_stream_is_cut_into_runs_of_elements_wherever_its_buckets_end(length: int):
    for tensors, share in ((weights(4), SHARDS[1]), (weights(5), WHOLE)):
        found = {entry.name: torch.zeros(tensors[entry.name].numel(), dtype=tensors[entry.name].dtype)
                 for entry in MANIFEST}
        expected = {name: tensor.clone() for name, tensor in found.items()}
        for piece in share:
            name = MANIFEST[piece.tensor].name
            rows = torch.atleast_1d(tensors[name])
            place = piece.first * rows[0].numel()
            expected[name][place : place + piece.rows * rows[0].numel()] = rows[
                piece.first : piece.first + piece.rows].reshape(-1)
        for tensor, first, run in elements(MANIFEST, share, stream_of(tensors, share).split(length)):
            found[MANIFEST[tensor].name][first : first + len(run)] = run
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


TWICE = [ShardRows(0, 0, MANIFEST[0].shape[0] - 1), ShardRows(0, 0, 1), *WHOLE[1:]]
"""The first row has two senders, the last has none, and their number is right."""


@pytest.mark.parametrize("shares", [[SHARDS[0]], [SHARDS[0], WHOLE], [SHARDS[0], SHARDS[1][1:]], [TWICE]])
def test_shares_that_leave_rows_out_or_send_them_twice_are_refused(shares):
    check_whole(MANIFEST, SHARDS)
    with pytest.raises(ValueError, match="rows"):
        check_whole(MANIFEST, shares)
