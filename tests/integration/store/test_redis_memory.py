"""A Redis of a run never fills up: the learner retires episodes while there is room for what a checkpoint writes."""

import pytest

from services.store.redis_server import memory_share, private_redis
from services.store.store import Store


@pytest.mark.parametrize(("memory", "held", "crowded"), [
    (64 << 20, 33 << 20, True), (64 << 20, 31 << 20, False), (8 << 30, 3 << 30, True), (8 << 30, 1 << 30, False)])
def test_a_checkpoint_is_asked_for_before_it_is_full(tmp_path, memory, held, crowded):
    """On a machine of 8 GB it held 2 GB at most, and a checkpoint was asked for beyond 2 GB."""
    with private_redis(tmp_path, memory=memory) as url:
        store = Store(url, "run")
        store.connection.redis.hset(store.connection.key("counters"), "bytes", held)
        assert store.crowded() is crowded


def test_a_run_keeps_less_where_others_have_filled_half_of_it(tmp_path):
    """Each of several runs that held just less than half would stop all of them: Redis refuses every write then."""
    with private_redis(tmp_path, memory=64 << 20) as url:
        store, counters = Store(url, "run"), Store(url, "run").connection.key("counters")
        store.connection.redis.hset(counters, "bytes", 20 << 20)
        assert not store.crowded()
        for number in range(33):
            store.connection.redis.set(f"gagpo:other:{number}", bytes(1 << 20))
        assert store.crowded()
        store.connection.redis.hset(counters, "bytes", 3 << 20)
        assert not store.crowded()


def test_a_large_machine_gives_it_no_more_than_the_bound():
    assert memory_share(64 * 1024**3) == 4 * 1024**3
