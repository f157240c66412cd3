"""The bench on a small size, with a real Redis; its real size is run by hand."""

from lab.bench import store


def test_the_bench_says_what_a_redis_carries_and_what_a_kept_turn_and_a_heartbeat_cost(monkeypatch):
    monkeypatch.setattr(store, "EPISODES", 2)
    monkeypatch.setattr(store, "KEPT", 32)
    monkeypatch.setattr(store, "WORKERS", 40)
    figures = {(figure.name, figure.unit): figure.value for figure in store.run()}
    assert figures["episode as arrays", "MB"] == 50 * (1500 + 500 + 500) * 4 / 1e6
    assert 0 < figures["packed", "MB"] < 0.5
    assert figures["bodies in Redis: limit of one Redis", "MB/s"] > 1
    assert figures["bodies in a folder: limit of one Redis", "episodes/s"] > 1
    assert figures["limit of one Redis, turns kept as well", "episodes/s"] < figures[
        "bodies in Redis: limit of one Redis", "episodes/s"]
    assert figures["kept turn of 500 tokens, in Redis", "bytes"] > 4000
    assert figures["kept turn of 12 tokens, in Redis", "bytes"] < 1500
    assert 0 < figures["heartbeat of one of 40 workers, of Redis' CPU", "µs"] < 5000
    assert 0 < figures["all 40 heartbeats read at once, of Redis' CPU", "ms"] < 100
