"""Spans as a receiver gets them: whose they are, what they cost when off, and what a dead receiver does."""

import json
import logging
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from collector import Collector
from ports import likely_port

from services.config.file import default_config
from services.errors import EnvFault, UserError
from services.records import Ticket
from services.telemetry import spans
from services.telemetry.logs import configure_logs
from services.telemetry.tickets import trace_drop, trace_issue
from services.telemetry.tracing import check, record, root, span, traceparent, tracing

TICKET = "train/00000001#2"
OFF = """
import sys
from services.telemetry import tracing
import envservice.client.client, envservice.server.process
with tracing.tracing(None, process="learner-0", run="r"):
    with tracing.span("turn", prompt_tokens=3) as told:
        assert told is None
    with tracing.span("episode", ticket="t") as told:
        assert told is None
    tracing.root("t"), tracing.record("drop", "t", reason="r")
    assert tracing.traceparent() == ""
tracing.check(None)
print(sorted(name for name in sys.modules if name.startswith("opentelemetry")))
import rollout.worker, learner.metrics.gauges, services.controller.controller
print("services.telemetry.spans" in sys.modules, "opentelemetry.exporter" in sys.modules)
"""
"""redis-py imports some of opentelemetry for itself, and environment servers have no redis-py."""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("opentelemetry"):  # import-linter, in another test, disables all loggers that it finds
            monkeypatch.setattr(logger, "disabled", False, raising=False)
    monkeypatch.setattr(spans, "EXPORT_S", 0.1)
    monkeypatch.setattr(spans, "STOP_S", 0.5)
    monkeypatch.setattr(spans, "DELAY_S", 0.01)
    monkeypatch.setattr(spans, "QUEUE", 64)
    monkeypatch.setattr(spans, "BATCH", 16)


def test_off_it_imports_nothing_and_gives_no_span():
    done = subprocess.run([sys.executable, "-c", OFF], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines() == ["[]", "False False"]


def test_off_every_span_is_the_same_object():
    assert span("turn", turn=1) is span("episode", ticket=TICKET)


def test_ids_are_a_function_of_run_and_ticket():
    """Processes of one run derive them on their own, so they are as fixed as a wire format."""
    trace_id, root_id = spans.ids("tiny-1", TICKET)
    assert (f"{trace_id:032x}", f"{root_id:016x}") == ("16b23ab5e97fe7f38650f2b7c7ef0841", "fd97fb876f35ff60")
    others = [spans.ids(run, ticket) for run, ticket in (("tiny-2", TICKET), ("tiny-1", "train/00000001#3"))]
    assert len({trace_id, *(trace for trace, _ in others)}) == 3


def test_processes_that_share_nothing_but_a_ticket_tell_one_trace(collector: Collector):
    """Two attempts and the learner arrive before the root does, which nobody waits for."""
    for attempt, process in enumerate(("rollout-0", "rollout-1"), start=1):
        with (
            tracing(collector.url, process=process, run="tiny-1"),
            span("episode", ticket=TICKET, attempt=attempt), span("turn", prompt_tokens=7) as told,
        ):
            assert told is not None
            told.set(versions=["1.2", "1.3"])
    with tracing(collector.url, process="learner-0", run="tiny-1"):
        record("train", TICKET, since=1_000_000_000, step=4)
    with tracing(collector.url, process="controller", run="tiny-1"):
        root(TICKET, task="toy/train/01")
    trace_id, root_id = spans.ids("tiny-1", TICKET)
    assert {told.trace for told in collector.spans} == {f"{trace_id:032x}"}
    assert {told.run for told in collector.spans} == {"tiny-1"}
    (above,) = collector.named("ticket")
    assert (above.id, above.parent, above.process) == (f"{root_id:016x}", "", "controller")
    assert above.facts == {"ticket": TICKET, "task": "toy/train/01"}
    episodes = collector.named("episode")
    assert [(told.process, told.parent, told.facts["attempt"]) for told in episodes] == [
        ("rollout-0", above.id, 1), ("rollout-1", above.id, 2)]
    assert [told.parent for told in collector.named("turn")] == [told.id for told in episodes]
    assert collector.named("turn")[0].facts == {"prompt_tokens": 7, "versions": ["1.2", "1.3"]}
    (trained,) = collector.named("train")
    assert (trained.parent, trained.facts["step"]) == (above.id, 4)
    assert trained.seconds > 1e6  # since 1970


def test_a_dropped_group_ends_the_traces_of_all_its_tickets(collector: Collector):
    tickets = [Ticket(group="train/00000007", k=k, size=3, task="toy/train/01", seed=k, kind="train", temperature=1.0,
                      max_steps=4) for k in range(3)]
    with tracing(collector.url, process="controller", run="r"):
        trace_issue(tickets)
        trace_drop("train/00000007", 3, "over-age: sampled before step 4")
    roots, drops = collector.named("ticket"), collector.named("drop")
    assert [told.facts["ticket"] for told in roots] == [ticket.id for ticket in tickets]
    assert roots[0].facts["task"] == "toy/train/01"
    assert [(told.trace, told.parent) for told in drops] == [(told.trace, told.id) for told in roots]
    assert {told.facts["reason"] for told in drops} == {"over-age: sampled before step 4"}


def test_an_exception_in_a_span_is_recorded_and_raised_again(collector: Collector):
    with tracing(collector.url, process="rollout-0"):
        with pytest.raises(EnvFault), span("episode", ticket=TICKET):
            raise EnvFault("no answer")
        with span("episode", ticket=TICKET):
            pass
    assert [(told.error, told.facts.get("error.type")) for told in collector.spans] == [
        ("no answer", "EnvFault"), ("", None)]


def test_a_traceparent_of_another_process_is_gone_on_with(collector: Collector):
    with tracing(collector.url, process="rollout-0"), span("episode", ticket=TICKET):
        here = traceparent()
        for parent in (here, "00-nonsense"):
            with span("serve step", parent=parent):
                pass
    (episode,) = collector.named("episode")
    assert here == f"00-{episode.trace}-{episode.id}-01"
    known, nonsense = collector.named("serve step")
    assert known.parent == episode.id
    assert nonsense.trace != episode.trace


def wait_for(told: Callable[[], list], seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while not told() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(told())


def lost(folder: Path) -> list[dict]:
    file = folder / "log.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [line for line in lines if line["event"].startswith("traces are lost")]


def take_turns(number: int) -> None:
    for turn in range(number):
        with span("turn", turn=turn):
            pass


@pytest.mark.usefixtures("impatient")
def test_a_receiver_that_never_answers_holds_nobody_up_and_is_told_once(tmp_path: Path):
    configure_logs(tmp_path, show=None)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with tracing(url, process="rollout-0"):
            take_turns(1000)
    (line,) = lost(tmp_path)
    assert (line["endpoint"], line["level"]) == (url, "warning")


@pytest.mark.usefixtures("impatient")
def test_a_receiver_that_is_not_there_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(spans, "EXPORT_S", 2.0)
    monkeypatch.setattr(spans, "STOP_S", 0.1)
    configure_logs(tmp_path, show=None)
    url = f"http://127.0.0.1:{likely_port()}"
    with tracing(url, process="rollout-0"):
        take_turns(40)
        assert wait_for(lambda: lost(tmp_path))
    (line,) = lost(tmp_path)
    # On a busy machine the exporter's deadline may pass before its first refusal is the reason that it gives.
    assert re.search("refused|timeout", line["reason"])


def test_a_share_of_the_tickets_is_the_same_share_for_every_process(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
):
    """OpenTelemetry's own variables decide by the trace id, which all processes derive alike."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.25")
    tickets = [f"train/{n:08d}#0" for n in range(200)]
    with tracing(collector.url, process="controller", run="r"):
        for ticket in tickets:
            root(ticket)
    with tracing(collector.url, process="rollout-0", run="r"):
        for ticket in tickets:
            with span("episode", ticket=ticket), span("turn"):
                pass
    shares = [{told.trace for told in collector.named(name)} for name in ("ticket", "episode", "turn")]
    assert shares[0] == shares[1] == shares[2]
    assert 20 < len(shares[0]) < 80


def test_without_the_package_it_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    check(None)
    with pytest.raises(UserError, match="OpenTelemetry is not installed"):
        check("http://127.0.0.1:4318")


@pytest.mark.parametrize("value", ["4318", "127.0.0.1:4318", "http://", "ftp://here/"])
def test_an_address_that_is_none_is_refused(value: str):
    with pytest.raises(UserError, match=r"metrics\.traces"):
        default_config([f"metrics.traces={value}"])


def test_a_password_in_the_address_is_refused_and_not_told():
    """It was in config.yaml and in the report."""
    with pytest.raises(UserError, match="OTEL_EXPORTER_OTLP_HEADERS") as told:
        default_config(["metrics.traces=http://me:sesame@receiver:4318"])
    assert "sesame" not in str(told.value)


def test_an_address_is_taken():
    assert default_config(["metrics.traces=https://traces.example:4318/x"]).metrics.traces
    assert default_config().metrics.traces is None
