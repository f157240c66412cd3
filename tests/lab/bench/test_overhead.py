"""Sums over processes that start, grow and end."""

import json

from lab.bench.overhead import _status, _Total
from services.telemetry.exposition import serving
from services.telemetry.heartbeat import Beat


def test_totals_keep_the_counts_of_ended_processes_and_restarted_ones_count_from_zero():
    """Process a reaches 3 and ends. b reaches 4, ends, and a new process of its name reaches 2: 3 + 4 + 2."""
    total = _Total()
    for now in ({"a": 1.0, "b": 1.0}, {"a": 3.0, "b": 4.0}, {"b": 2.0}):
        total.add({name: {"cpu": seconds, "logs": seconds / 10} for name, seconds in now.items()})
    assert total.sum["cpu"] == 9.0
    assert abs(total.sum["logs"] - 0.9) < 1e-9


def test_a_heartbeat_that_is_sent_for_another_process_is_not_counted(tmp_path):
    def beat(cost):
        return Beat(role="weights", doing="", since=0.0, progress=0.0, metrics={}, cost=cost)

    with serving(lambda: {"controller": beat({"cpu": 2.0}), "weights": beat({})}, host="127.0.0.1", port=0) as address:
        (tmp_path / "run.json").write_text(json.dumps([{"targets": [address]}]))
        assert _status(tmp_path / "run.json") == {"controller": {"cpu": 2.0}}
