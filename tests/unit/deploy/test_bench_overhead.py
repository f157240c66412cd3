"""Sums over processes that come, grow and go."""

from deploy.bench.overhead import _Total


def test_what_the_gone_had_reached_stays_and_who_starts_anew_counts_from_nought():
    """a: 3, then gone. b: 1, 4, then a new one of its name at 2: 3 + 4 + 2."""
    total = _Total()
    for now in ({"a": 1.0, "b": 1.0}, {"a": 3.0, "b": 4.0}, {"b": 2.0}):
        total.add({name: {"cpu": seconds, "logs": seconds / 10} for name, seconds in now.items()})
    assert total.sum["cpu"] == 9.0
    assert abs(total.sum["logs"] - 0.9) < 1e-9
