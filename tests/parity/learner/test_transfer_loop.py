"""The training loop with transfers: the pointer moves once the workers have the version, and no bit changes."""

import threading
import time
from contextlib import suppress

import pytest
import torch
from learner_tiny import weights
from loop_tiny import STEPS, play, run

from learner.weights.transfer import GIVE_UP
from rollout.transfer.inbox import HELD, RECEIVING, Inbox
from services.store.store import Store
from services.weights.checksum import digest_like
from services.weights.links import RoundEnd
from services.weights.meeting import Meeting
from services.weights.pack import unpack
from services.weights.rounds import Participant

SECONDS = 3600.0


class Worker:
    """A worker without an engine: rollout/transfer/receiver.py in a thread.

    `dies_at`: in the round of this step it joins the links, closes them as the end of a process does, and is silent
    from then on.
    """

    def __init__(self, meeting, name="w", *, refuses=(), dies_at=None):
        self.meeting, self.inbox, self.refuses, self.dies_at = meeting, Inbox(torch.device("cpu")), refuses, dies_at
        self.member, self.received, self.ended = Participant(worker=name), {}, threading.Event()
        self.thread = threading.Thread(target=self.work)
        self.meeting.call(self.member)
        self.thread.start()

    def work(self):
        while not self.ended.is_set():
            found = self.meeting.call(self.member)
            if found is not None and found.version.step == self.dies_at:
                self.die(found)
                return
            if found is not None:
                receiver = found.first_receiver(self.member.worker)
                self.inbox.begin(found, receiver=receiver, shared_gpu=0, address="127.0.0.1")
                while self.inbox.state() == RECEIVING:
                    time.sleep(0.001)
                if self.inbox.state() == HELD:
                    held = self.inbox.held(found.version.name)
                    self.received[found.version] = {name: held.whole(name).clone() for name in held.names}
                fault = "refused" if found.version.step in self.refuses else self.inbox.state().replace(HELD, "")
                self.meeting.tell(self.member.worker, found.version, fault)
            time.sleep(0.001)

    def die(self, found):
        with suppress(RuntimeError, TimeoutError):  # on a slow machine the round may end before it has joined
            self.inbox._linked(found, found.first_receiver(self.member.worker), "127.0.0.1", RoundEnd(found.seconds))
        self.inbox.close()
        self.meeting.leave(self.member.worker)

    def end(self):
        self.ended.set()
        self.thread.join()


@pytest.fixture(scope="module")
def by_host(redis_url, model_path, gang, tmp_path_factory):
    store = Store(redis_url, "by-host")
    play(store, range(2 * STEPS))
    learner, published, _ = run(store, tmp_path_factory.mktemp("host"), model_path, gang)
    return weights(learner), published


def ran(store, folder, model_path, gang, way, *, dies_at=None, **options):
    """Returns the learner, what it published to host memory, the worker, and the pointer before each version."""
    meeting = Meeting(lambda: 0.0)  # nobody is ever silent, however slow the machine
    worker = Worker(meeting, **options)
    other = None if dies_at is None else Worker(meeting, "x", dies_at=dies_at)
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
        if other is not None:
            other.end()
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


def test_a_worker_that_dies_in_a_round_costs_neither_a_version_nor_a_bit(
        by_host, redis_url, model_path, gang, tmp_path):
    """The round ends when the worker is missed, not at its deadline."""
    store = Store(redis_url, "dies")
    learner, published, _, before = ran(store, tmp_path, model_path, gang, "nccl", dies_at=1)
    assert [version.step for version, _ in published] == list(range(STEPS + 1))
    assert [packed.buffer.tobytes() for _, packed in published] == [packed.buffer.tobytes() for _, packed in by_host[1]]
    assert before[1][0].step == 0
    assert store.version()[0] == published[-1][0]
    assert all(torch.equal(tensor, by_host[0][name]) for name, tensor in weights(learner).items())
