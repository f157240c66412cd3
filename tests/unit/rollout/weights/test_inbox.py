"""Two senders and two receivers of one process, over gloo and over shared host memory: the code that GPUs run too."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rollout.weights.inbox import RECEIVED, RECEIVING, Inbox, VersionPart
from services.process.rendezvous import Rendezvous
from services.records import Version
from services.weights import link
from services.weights.checksum import combined, element_sum
from services.weights.link import Link
from services.weights.pack import Entry, TensorPiece, cut, layout
from services.weights.registry import Participant, Round
from services.weights.shared_memory import exported

CPU = torch.device("cpu")
SECONDS = 120.0
"""Longer than any of these takes on a busy machine."""


def weights(seed: int) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return {"a": torch.randn(13, 6, generator=random), "b": torch.randn(5, generator=random).bfloat16(),
            "c": torch.randn(8, 3, 2, generator=random), "d": torch.tensor(float(seed))}


MANIFEST, _ = layout((name, tuple(t.shape), str(t.dtype)[6:]) for name, t in weights(0).items())
SHARDS = [[TensorPiece(0, 0, 168), TensorPiece(1, 0, 6), TensorPiece(2, 0, 96), TensorPiece(3, 0, 4)],
          [TensorPiece(0, 168, 144), TensorPiece(1, 6, 4), TensorPiece(2, 96, 96), TensorPiece(3, 4, 0)]]
"""Rows of 24, 2, 24 and 4 bytes: 7, 3, 4 and 1 of them, and the rest."""
WHOLE = [TensorPiece(index, 0, entry.nbytes) for index, entry in enumerate(MANIFEST)]
MEMBERS = [Participant(worker="one"), Participant(worker="two", shared_gpu=1)]


def stream_of(tensors, share) -> torch.Tensor:
    flat = [tensors[entry.name].reshape(-1).view(torch.uint8) for entry in MANIFEST]
    return torch.cat([flat[piece.tensor][piece.start : piece.start + piece.size] for piece in share])


def version_of(tensors, step: int) -> Version:
    return Version(incarnation=1, step=step, digest=combined(
        MANIFEST, [int(element_sum(tensors[entry.name], 0)) for entry in MANIFEST]))


def over(inboxes: list[Inbox]) -> list[str]:
    for inbox in inboxes:
        inbox._thread.join()
    states = [inbox.state()[0] for inbox in inboxes]
    assert RECEIVING not in states
    return states


def arrived(*processes: Inbox) -> str:
    """Returns the digest of what the processes of an engine have received."""
    return combined(MANIFEST, *(inbox.state()[1] for inbox in processes))


class Senders:
    """Two senders, each in a thread: learner/weights/rank_sender.py without a model."""

    def __init__(self) -> None:
        self.links: list[Link | None] = [None, None]

    def send(self, transfer: Round, tensors, meeting: Rendezvous, *, damage: int | None = None,
             abort_reason: Callable[[], str] = str) -> list[BaseException]:
        faults: list[BaseException] = []

        def one(index: int) -> None:
            world = 2 + transfer.receivers
            if self.links[index] is None:
                own = meeting if index == 0 else Rendezvous("127.0.0.1", index, world)
                self.links[index] = Link(own, transfer.group, rank=index, world=world, device=CPU)
            stream = stream_of(tensors, transfer.shares[index])
            if damage is not None and index == 1:
                stream[damage] ^= 1
            try:
                self.links[index].begin(transfer.version.name, transfer.seconds, str if index else abort_reason)
                list(self.links[index].buckets(
                    [sum(piece.size for piece in share) for share in transfer.shares], stream))
            except (RuntimeError, TimeoutError) as fault:
                faults.append(fault)
                self.links[index].close()

        threads = [threading.Thread(target=one, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return faults


def by_link(step: int, *, group: str, seconds: float = SECONDS, members=MEMBERS) -> Round:
    return Round(version=version_of(weights(step), step), way="nccl", manifest=MANIFEST, shares=SHARDS, group=group,
                 members=members, seconds=seconds)


def begin(inboxes, transfer: Round) -> None:
    for number, (inbox, member) in enumerate(zip(inboxes, transfer.members, strict=False)):
        inbox.begin(transfer, first=number, shared_gpu=member.shared_gpu, address="127.0.0.1")


def assert_received(inbox: Inbox, transfer: Round) -> None:
    expected = weights(transfer.version.step)
    assert arrived(inbox) == transfer.version.digest
    for entry, tensor in zip(MANIFEST, inbox.received(transfer.version.name).tensors(), strict=True):
        assert tensor.dtype == expected[entry.name].dtype
        assert torch.equal(tensor, expected[entry.name]), entry.name


@pytest.fixture
def own_folder(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.mark.parametrize("bucket", [30, link.BUCKET])
def test_shards_of_two_senders_become_the_same_tensors_on_two_receivers_again_and_again(
        own_folder, bucket, monkeypatch):
    """Buckets that end inside a tensor and inside a number, too."""
    monkeypatch.setattr(link, "BUCKET", bucket)
    meeting, senders, inboxes = Rendezvous("127.0.0.1", 0, 4), Senders(), [Inbox(CPU), Inbox(CPU)]
    group = meeting.offer()
    for step in (1, 2):
        transfer = by_link(step, group=group)
        begin(inboxes, transfer)
        assert senders.send(transfer, weights(step), meeting) == []
        assert over(inboxes) == [RECEIVED] * 2
        for inbox in inboxes:
            assert_received(inbox, transfer)
            with pytest.raises(ValueError, match="was not received"):
                inbox.received(by_link(3, group=group).version.name)
    for inbox in inboxes:
        inbox.close()


def test_a_changed_byte_changes_the_digest_and_the_next_version_comes_over_a_new_link(own_folder):
    meeting, senders, inboxes = Rendezvous("127.0.0.1", 0, 4), Senders(), [Inbox(CPU), Inbox(CPU)]
    transfer = by_link(1, group=meeting.offer())
    begin(inboxes, transfer)
    assert senders.send(transfer, weights(1), meeting, damage=5) == []
    assert over(inboxes) == [RECEIVED] * 2
    assert transfer.version.digest not in map(arrived, inboxes)
    again = Rendezvous("127.0.0.1", 0, 4)
    transfer = by_link(2, group=again.offer())
    begin(inboxes, transfer)
    assert Senders().send(transfer, weights(2), again) == []
    assert over(inboxes) == [RECEIVED] * 2
    assert_received(inboxes[1], transfer)


TWICE = [TensorPiece(0, 0, 288), TensorPiece(0, 0, 24), *WHOLE[1:]]
"""The first row has two senders, the last has none, and their number is right."""


@pytest.mark.parametrize("shares", [[SHARDS[0]], [WHOLE, SHARDS[1][1:]], [TWICE]])
def test_rows_that_have_no_sender_or_two_are_noticed_by_the_digest_unless_the_bytes_are_right(shares):
    part = VersionPart(MANIFEST, index=0, count=1, device=CPU)
    part.memory.fill_(1)
    for share in shares:
        part.put(share, 0, stream_of(weights(1), share))
    assert (combined(MANIFEST, part.sums().tolist()) == version_of(weights(1), 1).digest) == (shares[0] is WHOLE)


def test_a_receiver_that_never_comes_holds_nobody_beyond_the_deadline(own_folder):
    meeting, senders, inbox = Rendezvous("127.0.0.1", 0, 4), Senders(), Inbox(CPU)
    transfer = by_link(1, group=meeting.offer(), seconds=2.0)
    begin([inbox], transfer)
    assert len(senders.send(transfer, weights(1), meeting)) == 2
    (state,) = over([inbox])
    assert state != RECEIVED


def test_the_processes_of_an_engine_keep_a_part_each_and_gather_whole_tensors(own_folder, monkeypatch):
    """Lengths that three does not divide, and buckets that end inside the runs of a tensor."""
    monkeypatch.setattr(link, "BUCKET", 30)
    meeting, senders = Rendezvous("127.0.0.1", 0, 5), Senders()
    engine = [Inbox(CPU, index=index, count=3) for index in range(3)]
    group, members = meeting.offer(), [Participant(worker="one", processes=3)]
    for step in (1, 2):
        transfer = by_link(step, group=group, members=members)
        for inbox in engine:
            inbox.begin(transfer, first=0, shared_gpu=0, address="127.0.0.1")
        assert senders.send(transfer, weights(step), meeting) == []
        assert over(engine) == [RECEIVED] * 3
        assert arrived(*engine) == transfer.version.digest
        parts = [inbox.received(transfer.version.name) for inbox in engine]
        for tensors in gathered(parts):
            assert all(torch.equal(tensor, weights(step)[entry.name])
                       for entry, tensor in zip(MANIFEST, tensors, strict=True))
    assert all(len(part.memory) < sum(entry.nbytes for entry in MANIFEST) for part in parts)


def gathered(parts: list[VersionPart]) -> list[list[torch.Tensor]]:
    """Returns the tensors as each process puts them together, all at the same time."""
    runs: dict[int, torch.Tensor] = {}
    all_there = threading.Barrier(len(parts))

    def gather(index: int, run: torch.Tensor) -> torch.Tensor:
        runs[index] = run
        all_there.wait(SECONDS)
        tensor = torch.cat([runs[other] for other in range(len(parts))])
        all_there.wait(SECONDS)
        return tensor

    with ThreadPoolExecutor(len(parts)) as pool:
        return list(pool.map(lambda index: list(parts[index].tensors(partial(gather, index))), range(len(parts))))


def test_a_receiver_that_stops_inside_a_broadcast_ends_the_round_once_it_is_missed(own_folder, monkeypatch):
    """It stays connected and reads nothing, as a process that NCCL cannot tell from a dead one. The deadline is longer
    than the test may take.
    """
    monkeypatch.setattr(link, "BUCKET", 32)
    meeting, senders, inbox = Rendezvous("127.0.0.1", 0, 4), Senders(), Inbox(CPU)
    transfer = by_link(1, group=meeting.offer(), seconds=3600)
    begin([inbox], transfer)
    stopped = Link(Rendezvous("127.0.0.1", 3, 4), transfer.group, rank=3, world=4, device=CPU)
    connecting = threading.Thread(target=stopped.begin, args=(transfer.version.name, 3600))
    connecting.start()
    faults = senders.send(transfer, weights(1), meeting,
                          abort_reason=lambda: "two: it is gone" if not connecting.is_alive() else "")
    assert [str(fault) for fault in faults] == ["two: it is gone"] * 2
    assert over([inbox]) == ["RuntimeError: two: it is gone"]
    stopped.close()  # else the others' broadcasts would never be over

    again = Rendezvous("127.0.0.1", 0, 3)
    transfer = by_link(2, group=again.offer(), members=MEMBERS[:1])
    begin([inbox], transfer)
    assert Senders().send(transfer, weights(2), again) == []
    assert over([inbox]) == [RECEIVED]
    assert_received(inbox, transfer)


def test_a_receiver_that_is_missed_before_it_connects_ends_the_round(own_folder):
    meeting, senders, inbox = Rendezvous("127.0.0.1", 0, 4), Senders(), Inbox(CPU)
    transfer = by_link(1, group=meeting.offer(), seconds=3600)
    begin([inbox], transfer)
    faults = senders.send(transfer, weights(1), meeting, abort_reason=lambda: "two: it is gone")
    assert [str(fault) for fault in faults] == ["two: it is gone"] * 2
    assert over([inbox]) == ["RuntimeError: two: it is gone"]


def test_a_sampler_reads_whole_tensors_from_the_memory_of_the_rank_on_its_gpu():
    inboxes = [Inbox(CPU), Inbox(CPU)]
    with ExitStack() as held:
        handles = []
        for _ in MEMBERS:
            stream, share = held.enter_context(exported(sum(piece.size for piece in WHOLE), CPU))
            stream.copy_(stream_of(weights(1), WHOLE))
            handles.append(share())
        transfer = Round(version=version_of(weights(1), 1), way="ipc", manifest=MANIFEST, shares=[WHOLE, WHOLE],
                         handles=handles, members=MEMBERS, seconds=SECONDS)
        begin(inboxes, transfer)
        assert over(inboxes) == [RECEIVED] * 2
        stream[0] ^= 1  # the memory of the second rank
        again = [Inbox(CPU), Inbox(CPU)]
        begin(again, transfer)
        assert over(again) == [RECEIVED] * 2
    assert [arrived(inbox) == transfer.version.digest for inbox in again] == [True, False]
    for inbox in inboxes:
        assert_received(inbox, transfer)  # a copy, which outlives the learner's memory


@pytest.mark.parametrize("length", [7, 64, 1 << 20])
def test_a_stream_is_cut_into_pieces_wherever_its_buckets_end(length: int):
    for share in (SHARDS[1], WHOLE):
        stream = stream_of(weights(4), share)
        result = {entry.name: torch.zeros(entry.nbytes, dtype=torch.uint8) for entry in MANIFEST}
        for at in range(0, len(stream), length):
            bucket = stream[at : at + length]
            for piece, place in cut(share, at, len(bucket)):
                result[MANIFEST[piece.tensor].name][piece.start : piece.start + piece.size] = bucket[place]
        for piece in share:
            name, end = MANIFEST[piece.tensor].name, piece.start + piece.size
            assert torch.equal(result[name][piece.start : end],
                               weights(4)[name].reshape(-1).view(torch.uint8)[piece.start : end])


class Dispatches(TorchDispatchMode):
    """Counts the operations that torch dispatches."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **kwargs or {})


def qwen(*, hidden: int, intermediate: int, layers: int, heads: int, keys: int) -> list[Entry]:
    """The tensors of a Qwen2.5 with heads of 128, a head of its own and 152,064 tokens."""
    rows = {"self_attn.q_proj": 128 * heads, "self_attn.k_proj": 128 * keys, "self_attn.v_proj": 128 * keys}
    shapes = {f"{name}.weight": (count, hidden) for name, count in rows.items()}
    shapes |= {f"{name}.bias": (count,) for name, count in rows.items()}
    shapes |= {"self_attn.o_proj.weight": (hidden, 128 * heads), "mlp.down_proj.weight": (hidden, intermediate),
               "mlp.gate_proj.weight": (intermediate, hidden), "mlp.up_proj.weight": (intermediate, hidden),
               "input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}
    manifest, _ = layout([
        *((f"model.layers.{layer}.{name}", shape, "bfloat16") for layer in range(layers)
          for name, shape in shapes.items()),
        ("model.embed_tokens.weight", (152064, hidden), "bfloat16"), ("lm_head.weight", (152064, hidden), "bfloat16"),
        ("model.norm.weight", (hidden,), "bfloat16")])
    return manifest


def sharded(manifest: list[Entry], ranks: int, rank: int) -> list[TensorPiece]:
    """The rows of each tensor that FSDP gives to a rank."""
    share = []
    for index, entry in enumerate(manifest):
        each, row = -(-entry.shape[0] // ranks), entry.nbytes // entry.shape[0]
        first = min(entry.shape[0], rank * each)
        share.append(TensorPiece(index, first * row, (min(entry.shape[0], first + each) - first) * row))
    return share


SIZES = {
    "7b": ({"hidden": 3584, "intermediate": 18944, "layers": 28, "heads": 28, "keys": 4}, 3, 1, 339),
    "32b": ({"hidden": 5120, "intermediate": 27648, "layers": 64, "heads": 40, "keys": 8}, 24, 4, 771)}
"""The shape, the ranks that send, the processes of an engine, and the tensors, as in alfworld-7b and alfworld-32b."""


@pytest.mark.parametrize("size", SIZES)
def test_a_process_that_receives_a_large_model_dispatches_few_operations(size: str):
    """Its thread shares the interpreter with vLLM's. At 20 microseconds for an operation it takes a second.

    Each piece of its own part is copied in three operations. Each tensor of its part is summed in a few, and in eleven
    for each four million numbers. The sums of each piece of the entire version took 480,000 at 32B.
    """
    shape, ranks, processes, tensors = SIZES[size]
    meta, manifest = torch.device("meta"), qwen(**shape)
    assert len(manifest) == tensors
    part = VersionPart(manifest, index=0, count=processes, device=meta)
    with Dispatches() as dispatched:
        for rank in range(ranks):
            share = sharded(manifest, ranks, rank)
            stream = sum(piece.size for piece in share)
            for at in range(0, stream, link.BUCKET):
                part.put(share, at, torch.empty(min(link.BUCKET, stream - at), dtype=torch.uint8, device=meta))
        part.sums()
    assert 20e-6 * dispatched.count < 1.0
