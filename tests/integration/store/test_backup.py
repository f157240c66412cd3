"""Backup and restore of a store, as docs/operate/operations.md tells it: a copy of the data folder of a live Redis."""

import shutil

from store_episodes import played, tickets
from waiting import wait_until_written

from services.records import Manifest
from services.store.redis_server import private_redis
from services.store.store import Store

GROUPS = [f"train/{number:08d}" for number in range(3)]


def fill(store: Store) -> None:
    """Two groups are played and one of them is in a manifest; of the third group one episode is out."""
    controller = store.leases.acquire("controller", "c")
    for number in range(len(GROUPS)):
        assert store.issue(controller, tickets(number), capacity=100)
    claims = store.claim("w", 6)
    assert len(claims) == 6
    for claim in claims[:5]:
        assert store.commit_episode(claim, played(claim)) == "accepted"
    learner = store.leases.acquire("learner", "l")
    incarnation = store.state.incarnation(learner)
    store.steps.begin(learner, Manifest(step=1, incarnation=incarnation, groups=[GROUPS[0]], drops=[]))


def seen(store: Store) -> tuple:
    """All that a run goes on with."""
    played = [[(one.ticket.id, one.attempt, one.steps[0].action) for one in store.episodes(group)] for group in GROUPS]
    return store.counts(), store.steps.manifests(0), store.supply(), played


def test_a_copy_of_a_live_stores_folder_has_all_that_was_written(tmp_path):
    with private_redis(tmp_path / "live") as url:
        store = Store(url, "run")
        fill(store)
        before = seen(store)
        assert [len(played) for played in before[3]] == [2, 2, 1]
        wait_until_written(store.connection.redis)
        shutil.copytree(tmp_path / "live", tmp_path / "copy", ignore=shutil.ignore_patterns("redis.*"))
    with private_redis(tmp_path / "copy") as url:
        assert seen(Store(url, "run")) == before
