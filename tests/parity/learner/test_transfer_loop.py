"""The training loop with transfers: the pointer moves once the workers have the version, and no bit changes."""

import threading
import time

import pytest
import torch
from learner_tiny import weights
from loop_tiny import STEPS, play, run

from learner.model.policy import load_policy
from learner.weights.rank_sender import RankSender
from learner.weights.sender import GIVE_UP
from rollout.weights.inbox import RECEIVED, RECEIVING, Inbox
from services.records import Version
from services.store.store import Store
from services.weights.checksum import combined, digest_like
from services.weights.pack import unpack
from services.weights.registry import Participant, Round, TransferRegistry
from services.weights.shared_memory import imported

SECONDS = 3600.0
DEADLINE_S = 120.0


class Worker:
    """A worker without an engine: rollout/weights/receiver.py in a thread.

    `dies_at`: in the round of this step it disconnects, as the end of a process does, and is silent from then on.
    """

    def __init__(self, registry, name="w", *, refuses=(), dies_at=None):
        self.registry, self.inbox, self.refuses, self.dies_at = registry, Inbox(torch.device("cpu")), refuses, dies_at
        self.member, self.received, self.ended = Participant(worker=name), {}, threading.Event()
        self.thread = threading.Thread(target=self.work)
        self.registry.call(self.member)
        self.thread.start()

    def work(self):
        while not self.ended.is_set():
            found = self.registry.call(self.member)
            if found is not None and found.version.step == self.dies_at:
                self.die()
                return
            if found is not None:
                self.inbox.begin(found, first=found.first_receiver(self.member.worker), shared_gpu=0,
                                 address="127.0.0.1")
                while self.inbox.state()[0] == RECEIVING:
                    time.sleep(0.001)
                fault, sums = self.inbox.state()
                if fault == RECEIVED:
                    assert combined(found.manifest, sums) == found.version.digest
                    tensors = self.inbox.received(found.version.name).tensors()
                    self.received[found.version] = {
                        entry.name: tensor.clone() for entry, tensor in zip(found.manifest, tensors, strict=True)}
                self.registry.report(self.member.worker, found.version,
                                     "refused" if found.version.step in self.refuses else fault)
            time.sleep(0.001)

    def die(self):
        self.inbox.close()
        self.registry.leave(self.member.worker)

    def end(self):
        self.ended.set()
        self.thread.join()


@pytest.fixture(scope="module")
def by_host(redis_url, model_path, rank_group, tmp_path_factory):
    store = Store(redis_url, "by-host")
    play(store, range(2 * STEPS))
    learner, published, _ = run(store, tmp_path_factory.mktemp("host"), model_path, rank_group)
    return weights(learner), published


def ran(store, folder, model_path, rank_group, way, *, dies_at=None, wanted=lambda: None, slow=lambda _: None,
        **options):
    """Returns the learner, what it published to host memory, the worker, and the pointer before each version."""
    registry = TransferRegistry(lambda: 0.0)  # nobody is ever silent, however slow the machine
    worker = Worker(registry, **options)
    other = None if dies_at is None else Worker(registry, "x", dies_at=dies_at)
    before = []

    def ask(method, *arguments):
        if method == "end":  # the pointer has not moved yet
            before.append(store.state.version())
        return getattr(registry, method)(*arguments)

    try:
        play(store, range(2 * STEPS))
        learner, published, _ = run(store, folder, model_path, rank_group, ask=ask, wanted=wanted, slow=slow,
                                    weights={"transfer": way, "seconds": SECONDS})
    finally:
        worker.end()
        if other is not None:
            other.end()
    return learner, published, worker, before


@pytest.mark.parametrize("way", ["nccl", "ipc"])
def test_workers_receive_every_version_before_it_is_current_and_training_is_the_same(
        way, by_host, redis_url, model_path, rank_group, tmp_path):
    """Host memory gets the versions of evaluations and checkpoints alone."""
    store = Store(redis_url, f"by-{way}")
    learner, published, worker, before = ran(store, tmp_path, model_path, rank_group, way)
    assert [version.step for version in worker.received] == list(range(STEPS + 1))
    assert sorted(version.step for version, _ in published) == [0, 2, 4]
    expected = {version.step: packed for version, packed in by_host[1]}
    for version, packed in published:
        assert packed.digest == version.digest == digest_like(version.digest, packed.manifest, packed.buffer)
        assert packed.buffer.tobytes() == expected[version.step].buffer.tobytes()
    for version, tensors in worker.received.items():
        packed = expected[version.step]
        assert all(torch.equal(tensors[name], tensor)
                   for name, tensor in unpack(packed.manifest, packed.buffer).items())
    assert [pointer and pointer[0].step for pointer in before] == [None, *range(STEPS)]
    assert store.state.version()[0] == list(worker.received)[-1]
    assert all(torch.equal(tensor, by_host[0][name]) for name, tensor in weights(learner).items())


def test_the_next_step_does_not_wait_while_host_memory_gets_a_version(by_host, redis_url, model_path, rank_group,
                                                                      tmp_path):
    """Publishing the checkpoint of step 2 lasts until step 3 is trained and sent. A worker that starts late wants
    step 1, which has no checkpoint."""
    store, missing = Store(redis_url, "slow"), []
    third = threading.Event()

    def slow(version):
        if version.step == 2:
            missing.append(not third.wait(DEADLINE_S))

    def wanted():
        pointer = store.state.version()
        if pointer is not None and pointer[0].step == 3:
            third.set()
        return pointer[0] if pointer is not None and pointer[0].step == 1 else None

    learner, published, worker, _ = ran(store, tmp_path, model_path, rank_group, "nccl", wanted=wanted, slow=slow)
    assert missing == [False], "step 3 waited for the version of step 2"
    expected = {version.step: packed for version, packed in by_host[1]}
    assert {version.step for version, _ in published} == {0, 1, 2, 4}
    assert all(packed.buffer.tobytes() == expected[version.step].buffer.tobytes() for version, packed in published)
    assert len(worker.received) == STEPS + 1
    assert all(torch.equal(tensor, by_host[0][name]) for name, tensor in weights(learner).items())


def test_versions_that_a_worker_refuses_go_through_host_memory_and_after_some_none_is_sent(
        redis_url, model_path, rank_group, tmp_path):
    store = Store(redis_url, "refused")
    _, published, worker, before = ran(store, tmp_path, model_path, rank_group, "nccl", refuses=range(STEPS + 1))
    assert len(before) == len(worker.received) == GIVE_UP
    assert [version.step for version, _ in published] == list(range(STEPS + 1))
    assert store.state.version()[0] == published[-1][0]


def test_a_worker_that_dies_in_a_round_costs_neither_a_version_nor_a_bit(
        by_host, redis_url, model_path, rank_group, tmp_path):
    """The round ends when the worker is missed, not at its deadline, and host memory gets its version."""
    store = Store(redis_url, "dies")
    learner, published, _, before = ran(store, tmp_path, model_path, rank_group, "nccl", dies_at=1)
    expected = {version.step: packed for version, packed in by_host[1]}
    assert {version.step for version, _ in published} == {0, 1, 2, 4}
    assert all(packed.buffer.tobytes() == expected[version.step].buffer.tobytes() for version, packed in published)
    assert before[1][0].step == 0
    assert store.state.version()[0].step == STEPS
    assert all(torch.equal(tensor, by_host[0][name]) for name, tensor in weights(learner).items())


def test_versions_that_nobody_reads_do_not_take_memory_again_and_again(model_path, rank_group):
    """torch frees memory that was offered by CUDA IPC only once a process has opened and closed it: its counter of
    readers begins at 1 (torch/csrc/CudaIPCTypes.cpp). So all versions take the same memory."""
    policy = load_policy(model_path)
    sender = RankSender(policy, rank_group, dtype=torch.float32, shards=1, ipc=True)
    first = sender.snapshot()
    seen = imported(first.handles[0], rank_group.device)
    before = seen.clone()
    sender.send(Round(version=Version(incarnation=1, step=1), way="ipc", manifest=first.manifest, shares=first.shares,
                      members=[], seconds=1), str)
    with torch.no_grad():
        next(policy.parameters()).add_(1)
    second = sender.snapshot()
    assert second.handles == first.handles
    assert second.digest != first.digest
    assert torch.equal(seen, imported(second.handles[0], rank_group.device))
    assert not torch.equal(seen, before)
