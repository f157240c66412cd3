"""Heartbeats cost Redis what they hold, however many processes send them."""

import pytest

from services.store.gpu_lease import WANTED, GpuLease

SNAPSHOT = {"role": "rollout", "doing": "plays", "metrics": "m" * 6000}


@pytest.fixture
def workers(store) -> list[str]:
    names = [f"rollout-{number}" for number in range(50)]
    for name in names:
        store.state.beat(name, SNAPSHOT, ttl_s=600)
    return names


def sent_bytes(store) -> int:
    """Returns the bytes that Redis has sent since it started."""
    return store.connection.redis.info("stats")["total_net_output_bytes"]


def test_a_heartbeat_is_not_answered_with_those_of_all_others(store, workers):
    before = sent_bytes(store)
    for name in workers:
        store.state.beat(name, SNAPSHOT, ttl_s=600)
    assert sent_bytes(store) - before < 100_000
    assert sorted(store.state.beats()) == sorted(workers)


def test_a_worker_that_asks_whether_its_gpu_is_wanted_does_not_read_the_heartbeats_of_other_workers(store, workers):
    lease = GpuLease(store, workers[0])
    store.state.beat("learner-0", {"role": "learner", "doing": WANTED})
    before = sent_bytes(store)
    assert all(lease.wanted() for _ in range(10))
    assert sent_bytes(store) - before < 10 * 10_000


def test_a_gpu_is_wanted_only_while_the_learner_that_says_so_is_alive(store):
    lease = GpuLease(store, "rollout-0")
    assert not lease.wanted()
    store.state.beat("learner-0", {"role": "learner", "doing": "trains"})
    assert not lease.wanted()
    store.state.beat("learner-0", {"role": "learner", "doing": WANTED})
    assert lease.wanted()
    store.state.beat("learner-0", {"role": "learner", "doing": WANTED}, ttl_s=0)
    assert not lease.wanted()
