"""Backup and restore of a store, as docs/operate/operations.md tells it: a copy of the data folder of a live Redis."""

import shutil

import numpy as np
import pytest
from waiting import wait_until_written

from services.records import Episode, Manifest, Step, Ticket, Version, VersionSpan
from services.store.redis_server import private_redis
from services.store.store import Store

GROUPS = [f"train/{number:08d}" for number in range(3)]


def ticket(group: str, k: int) -> Ticket:
    return Ticket(group=group, k=k, size=2, task="toy/1", seed=k, kind="train", temperature=1.0, max_steps=5)


def fill(store: Store, episode) -> None:
    """Two groups are played and one of them is in a manifest; of the third group one episode is out."""
    controller = store.leases.acquire("controller", "c")
    for group in GROUPS:
        assert store.issue(controller, [ticket(group, k) for k in range(2)], capacity=100)
    claims = store.claim("w", 6)
    assert len(claims) == 6
    for claim in claims[:5]:
        assert store.commit_episode(claim, episode(claim)) == "accepted"
    learner = store.leases.acquire("learner", "l")
    incarnation = store.state.incarnation(learner)
    store.steps.begin(learner, Manifest(step=1, incarnation=incarnation, groups=[GROUPS[0]], drops=[]))


def seen(store: Store) -> tuple:
    """All that a run goes on with."""
    played = [[(one.ticket.id, one.steps[0].action) for one in store.episodes(group)] for group in GROUPS]
    return store.counts(), store.steps.manifests(0), store.supply(), played


@pytest.fixture
def episode():
    def make(claim) -> Episode:
        step = Step(
            observation="o", action=claim.ticket.id, valid=True, admissible=True, reward=1.0,
            prompt_ids=np.array([1, 2], np.int32), response_ids=np.array([3], np.int32),
            logprobs=np.array([-0.5], np.float32),
            spans=[VersionSpan(version=Version(incarnation=1, step=0), start=0, end=1)])
        return Episode(ticket=claim.ticket, steps=[step], won=True, end="won", worker="w", attempt=claim.attempt,
                       seconds=0.1, engine="e")
    return make


def test_a_copy_of_a_live_stores_folder_has_all_that_was_written(tmp_path, episode):
    with private_redis(tmp_path / "live") as url:
        store = Store(url, "run")
        fill(store, episode)
        before = seen(store)
        assert [len(played) for played in before[3]] == [2, 2, 1]
        wait_until_written(store.connection.redis)
        shutil.copytree(tmp_path / "live", tmp_path / "copy", ignore=shutil.ignore_patterns("redis.*"))
    with private_redis(tmp_path / "copy") as url:
        assert seen(Store(url, "run")) == before
