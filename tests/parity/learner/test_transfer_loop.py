"""The training loop with transfers: the pointer moves once the workers have the version, and no bit changes."""

import threading
import time

import pytest
import torch
from learner_tiny import weights
from loop_tiny import STEPS, play, run

from learner.transfer import GIVE_UP
from rollout.inbox import HELD, RECEIVING, Inbox
from services.store.store import Store
from services.weights.checksum import digest_like
from services.weights.meeting import Meeting
from services.weights.pack import unpack
from services.weights.rounds import Participant

SECONDS = 120.0


class Worker:
    """A worker without an engine: rollout/receiver.py in a thread."""

    def __init__(self, meeting, *, refuses=()):
        self.meeting, self.inbox, self.refuses = meeting, Inbox(torch.device("cpu")), refuses
        self.received, self.ended = {}, threading.Event()
        self.thread = threading.Thread(target=self.work)
        self.meeting.call(Participant(worker="w"))
        self.thread.start()

    def work(self):
        while not self.ended.is_set():
            found = self.meeting.call(Participant(worker="w"))
            if found is not None:
                self.inbox.begin(found, receiver=0, card=0, address="127.0.0.1")
                while self.inbox.state() == RECEIVING:
                    time.sleep(0.001)
                if self.inbox.state() == HELD:
                    self.received[found.version] = {
                        name: tensor.clone() for name, tensor in self.inbox.tensors(found.version.name).items()}
                refused = found.version.step in self.refuses
                self.meeting.tell("w", found.version, "refused" if refused else self.inbox.state().replace(HELD, ""))
            time.sleep(0.001)

    def end(self):
        self.ended.set()
        self.thread.join()


@pytest.fixture(scope="module")
def by_host(redis_url, model_path, gang, tmp_path_factory):
    store = Store(redis_url, "by-host")
    play(store, range(2 * STEPS))
    learner, published, _ = run(store, tmp_path_factory.mktemp("host"), model_path, gang)
    return weights(learner), published


def ran(store, folder, model_path, gang, way, **options):
    """Returns the learner, what it published to host memory, the worker, and the pointer before each version."""
    meeting = Meeting(lambda: 0.0)  # nobody is ever silent, however slow the machine
    worker = Worker(meeting, **options)
    before = []

    def ask(method, *arguments):
        if method == "end":  # the pointer has not moved yet
            before.append(store.version())
        return getattr(meeting, method)(*arguments)

    try:
        play(store, range(2 * STEPS))
        learner, published, _ = run(store, folder, model_path, gang, ask=ask,
                                    weights={"transfer": way, "seconds": SECONDS})
    finally:
        worker.end()
    return learner, published, worker, before


@pytest.mark.parametrize("way", ["nccl", "ipc"])
def test_workers_receive_every_version_before_it_is_current_and_training_is_the_same(
        way, by_host, redis_url, model_path, gang, tmp_path):
    store = Store(redis_url, f"by-{way}")
    learner, published, worker, before = ran(store, tmp_path, model_path, gang, way)
    assert [version.step for version, _ in published] == list(range(STEPS + 1))
    for (version, packed), (_, expected) in zip(published, by_host[1], strict=True):
        assert packed.digest == version.digest == digest_like(version.digest, packed.manifest, packed.buffer)
        assert packed.buffer.tobytes() == expected.buffer.tobytes()
        for name, tensor in unpack(packed.manifest, packed.buffer).items():
            assert torch.equal(worker.received[version][name], tensor)
    assert [pointer and pointer[0].step for pointer in before] == [None, *range(STEPS)]
    assert store.version()[0] == published[-1][0]
    assert all(torch.equal(tensor, by_host[0][name]) for name, tensor in weights(learner).items())


def test_versions_that_a_worker_refuses_go_through_host_memory_and_after_some_none_is_sent(
        redis_url, model_path, gang, tmp_path):
    store = Store(redis_url, "refused")
    _, published, worker, before = ran(store, tmp_path, model_path, gang, "nccl", refuses=range(STEPS + 1))
    assert len(before) == len(worker.received) == GIVE_UP
    assert [version.step for version, _ in published] == list(range(STEPS + 1))
    assert store.version()[0] == published[-1][0]
