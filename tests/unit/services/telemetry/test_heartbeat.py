"""Heartbeats of one process that two threads send, and of one whose store is away."""

import threading

import structlog

from services.telemetry import heartbeat
from services.telemetry.heartbeat import Beating, Heartbeat

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
