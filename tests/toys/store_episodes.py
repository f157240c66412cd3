"""Tickets and episodes for tests of the store."""

import numpy as np

from services.records import Episode, Step, Ticket, Version, VersionSpan


def tickets(number, size=2, kind="train", task="alfworld/train/a"):
    return [
        Ticket(group=f"{kind}/{number:08d}", k=k, size=size, task=task, seed=k, kind=kind, temperature=1.0, max_steps=5)
        for k in range(size)]


def played(claim, seconds=1.0):
    step = Step(
        observation="You see a desk.", prompt_ids=np.arange(3, dtype=np.int32),
        response_ids=np.array([4, 5], np.int32), logprobs=np.array([-1.0, -2.0], np.float32),
        spans=[VersionSpan(version=Version(incarnation=1, step=2), start=0, end=2)], action="look", valid=True,
        admissible=True, reward=0.5)
    return Episode(
        ticket=claim.ticket, steps=[step], won=False, end="lost", worker=claim.worker, attempt=claim.attempt,
        seconds=seconds, engine="own")


def play_all(store, worker="w"):
    for claim in store.claim(worker, 100, min_idle_s=0.0):
        assert store.commit_episode(claim, played(claim)) == "accepted"
