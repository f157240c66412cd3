"""Heartbeats of processes, and the metrics that are served from them."""

from __future__ import annotations

import math
import socket
import threading
from contextlib import suppress
from typing import get_args

import httpx
import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families

from services.errors import UserError
from services.telemetry import heartbeat
from services.telemetry.catalogue import CATALOGUE, Role
from services.telemetry.exposition import MAX_WORKERS, Exposition, serving
from services.telemetry.heartbeat import Beat, Beating, Heartbeat, decode
from services.telemetry.meters import OTHER, Meters


def series(beats: dict[str, Beat]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {(sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(Exposition()(beats).decode()) for sample in family.samples}


def beat(heartbeat: Heartbeat) -> Beat:
    return decode({heartbeat.name: heartbeat.beat()})[heartbeat.name]


def at(name: str, **labels: str):
    return name, frozenset(labels.items())


def test_counters_begin_at_zero_with_all_their_labels():
    shown = series({"rollout-0": beat(Heartbeat("rollout-0", "rollout"))})
    for outcome in ("accepted", "refused", "failed"):
        assert shown[at("gagpo_rollout_episodes_total", worker="rollout-0", outcome=outcome)] == 0
    assert shown[at("gagpo_rollout_turn_seconds_count", worker="rollout-0")] == 0


def test_metric_types_and_labels_survive_the_heartbeat():
    """A histogram's buckets are cumulative, and two workers stay apart."""
    beats = {}
    for name, seconds in (("rollout-0", (0.02, 0.2)), ("rollout-1", (70.0,))):
        heartbeat = Heartbeat(name, "rollout")
        for value in seconds:
            heartbeat.meters("gagpo_rollout_turn_seconds").observe(value)
        beats[name] = beat(heartbeat)
    text = Exposition()(beats).decode()
    assert text.count("# TYPE gagpo_rollout_turn_seconds histogram") == 1
    assert "_created" not in text
    shown = series(beats)
    assert shown[at("gagpo_rollout_turn_seconds_bucket", worker="rollout-0", le="0.025")] == 1
    assert shown[at("gagpo_rollout_turn_seconds_bucket", worker="rollout-0", le="0.25")] == 2
    assert shown[at("gagpo_rollout_turn_seconds_bucket", worker="rollout-0", le="+Inf")] == 2
    assert shown[at("gagpo_rollout_turn_seconds_sum", worker="rollout-1")] == 70.0


def test_worker_labels_are_bounded_and_nothing_is_left_out():
    beats = {}
    for index in range(MAX_WORKERS + 6):
        heartbeat = Heartbeat(f"rollout-{index:04}", "rollout")
        heartbeat.meters("gagpo_rollout_env_steps_total").inc(2)
        beats[heartbeat.name] = beat(heartbeat)
    shown = {labels: value for (name, labels), value in series(beats).items()
             if name == "gagpo_rollout_env_steps_total"}
    assert len(shown) == MAX_WORKERS + 1
    assert shown[frozenset({("worker", OTHER)})] == 12


def test_workers_beyond_the_bound_add_up_what_they_count_and_show_the_largest_of_the_rest():
    """A hundred workers of which each is a step behind are a step behind: the alert asks for more than one."""
    beats = {}
    for index in range(MAX_WORKERS + 6):
        heartbeat = Heartbeat(f"rollout-{index:04}", "rollout")
        heartbeat.meters("gagpo_rollout_version_lag_steps").set(1)
        heartbeat.meters("gagpo_rollout_kv_used_ratio").set(index / 100)
        heartbeat.meters("gagpo_rollout_slots").set(8)
        beats[heartbeat.name] = beat(heartbeat)
    shown = series(beats)
    assert shown[at("gagpo_rollout_version_lag_steps", worker=OTHER)] == 1
    assert shown[at("gagpo_rollout_kv_used_ratio", worker=OTHER)] == 0.69
    assert shown[at("gagpo_rollout_slots", worker=OTHER)] == 48


def test_a_worker_that_ends_or_starts_again_lowers_no_counter_of_the_others():
    """Prometheus takes a counter that falls for one that began again, and adds all that is left of it to the rate."""
    names = [f"rollout-{index}" for index in range(MAX_WORKERS + 2)]
    counted = dict.fromkeys(names, 100)

    def shown(*living: str) -> dict[str, float]:
        beats = {}
        for name in living:
            heartbeat = Heartbeat(name, "rollout")
            heartbeat.meters("gagpo_rollout_env_steps_total").inc(counted[name])
            beats[name] = beat(heartbeat)
        text = exposition(beats).decode()
        return {sample.labels["worker"]: sample.value for family in text_string_to_metric_families(text)
                for sample in family.samples if sample.name == "gagpo_rollout_env_steps_total"}

    exposition = Exposition()
    assert shown(*names)[OTHER] == 200
    assert shown(*(name for name in names if name != "rollout-7"))[OTHER] == 200, "nobody takes its label"
    assert shown(*names[:-1])[OTHER] == 200, "the last one has ended"
    counted["rollout-65"] = 30
    assert shown(*names)[OTHER] == 230, "it has started again"
    counted["rollout-64"] = 101
    assert shown(*names)[OTHER] == 231


def test_undeclared_metrics_are_not_shown():
    own = beat(Heartbeat("learner-0", "learner"))
    foreign = Beat(role="learner", doing="", since=0, progress=0, metrics={"evil": [("evil", {"x": "1"}, 1.0)]})
    assert "evil" not in Exposition()({"a": foreign, "learner-0": own}).decode()


def test_a_gauge_that_is_not_finite_has_no_series():
    heartbeat = Heartbeat("learner-0", "learner")
    assert at("gagpo_learner_gradient_norm", worker="learner-0") not in series({"learner-0": beat(heartbeat)}), "unset"
    heartbeat.meters("gagpo_learner_gradient_norm").set(math.nan)
    assert at("gagpo_learner_gradient_norm", worker="learner-0") not in series({"learner-0": beat(heartbeat)})
    heartbeat.meters("gagpo_learner_gradient_norm").set(2.5)
    assert series({"learner-0": beat(heartbeat)})[at("gagpo_learner_gradient_norm", worker="learner-0")] == 2.5


def test_label_values_are_the_declared_ones_or_so_many():
    meters = Meters("rollout")
    with pytest.raises(ValueError, match="outcome='lost'"):
        meters("gagpo_rollout_episodes_total", outcome="lost")
    with pytest.raises(KeyError):
        meters("gagpo_learner_step")
    meters = Meters("controller")
    bound = CATALOGUE["gagpo_eval_success_ratio"].labels["task_type"]
    assert isinstance(bound, int)
    for index in range(bound + 3):
        meters("gagpo_eval_success_ratio", task_type=f"type-{index}").set(1)
    labels = {labels["task_type"] for _, labels, _ in meters.snapshot()["gagpo_eval_success_ratio"]}
    assert len(labels) == bound + 1
    assert OTHER in labels


def test_a_count_that_was_reset_does_not_lower_a_counter():
    meters = Meters("controller")
    for total in (5, 7, 3, 4):
        meters.follow("gagpo_store_groups_issued_total", total)
    assert meters.snapshot()["gagpo_store_groups_issued_total"][0][2] == 8


def test_every_role_exports_what_it_declares():
    for role in get_args(Role):
        unlabelled = {one.name for one in CATALOGUE.values() if role in one.roles and not one.labels}
        assert unlabelled <= {name for name, samples in Meters(role).snapshot().items() if samples}


def has_ipv6() -> bool:
    with suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_an_address_of_ipv6_is_one_that_a_url_can_hold():
    with serving(dict, host="::1", port=0) as address:
        assert httpx.get(f"http://{address}/metrics", timeout=60).status_code == 200
        port = int(address.rpartition(":")[2])
        with pytest.raises(UserError, match=rf"cannot listen on \[::1\]:{port}"), serving(dict, host="::1", port=port):
            pass

DEADLINE_S = 60.0


def test_a_beat_that_was_made_before_does_not_arrive_after_a_newer_one():
    heartbeat, arrived = Heartbeat("learner-0", "learner"), []
    under_way, may_arrive = threading.Event(), threading.Event()

    def slow(_, fields):
        under_way.set()
        assert may_arrive.wait(DEADLINE_S)
        arrived.append(fields["doing"])

    heartbeat.doing("waits")
    first = threading.Thread(target=heartbeat.send, args=(slow,))
    first.start()
    assert under_way.wait(DEADLINE_S)
    heartbeat.doing("trains")
    second = threading.Thread(target=heartbeat.send, args=(lambda _, fields: arrived.append(fields["doing"]),))
    second.start()
    second.join(0.2)  # it would have arrived by then, if it did not wait
    may_arrive.set()
    for thread in (first, second):
        thread.join(DEADLINE_S)
    assert arrived == ["waits", "trains"]


def test_an_outage_is_told_once_and_so_is_the_next_one(monkeypatch):
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.01)
    answers = iter([False] * 5 + [True] * 3 + [False] * 5 + [True])
    over = threading.Event()

    def send(*_):
        if (answer := next(answers, None)) is None:
            over.set()
        elif not answer:
            raise ConnectionError("refused")

    with structlog.testing.capture_logs() as logs, Beating(Heartbeat("learner-0", "learner"), send):
        assert over.wait(DEADLINE_S)
    assert [line["event"] for line in logs] == ["no heartbeat", "no heartbeat"]
