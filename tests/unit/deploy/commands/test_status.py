"""What `gagpo status` says of a run: over real endpoints, whose counters grow at a known rate."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from prometheus_client import start_http_server

from deploy.commands.status import speed, summary, table
from deploy.launch.monitoring import target_groups
from deploy.runs.configs import load_config
from deploy.runs.folder import RunFolder
from deploy.runs.live_status import Seen, look, rate
from services.config.file import dump_config
from services.telemetry.exposition import serving
from services.telemetry.heartbeat import Beat
from services.telemetry.meters import Meters

TOKENS = "gagpo_rollout_tokens_total"
COMMAND = [sys.executable, "-m", "deploy.cli", "status"]
STATUS = {
    "run": "runs/a", "state": "not finished", "step": 3, "steps": 30, "seconds_since_step": 4.2, "success_rate": 0.25,
    "version": "1.3", "staleness_mean": 0.5, "staleness_max": 1, "evaluations": [], "learner_ranks": 1}


def worker(at: float, tokens: float) -> Beat:
    return Beat(role="rollout", version="1.3", doing="playing", since=at, progress=at, at=at,
                metrics={TOKENS: [(TOKENS, {"kind": "prompt"}, 9.0), (TOKENS, {"kind": "response"}, tokens)]})


def learner(steps: float) -> Beat:
    phase = "gagpo_learner_phase_seconds_total"
    return Beat(role="learner", version="1.3", doing="waits for groups", since=1.0, progress=1.0, at=1.0, metrics={
        "gagpo_learner_steps_total": [("gagpo_learner_steps_total", {}, steps)],
        phase: [(phase, {"phase": "wait"}, 12.0), (phase, {"phase": "credit"}, 18.0)]})


def test_a_rate_is_over_the_time_between_two_heartbeats_by_their_own_clock():
    assert rate(worker(110.0, 4000.0), worker(100.0, 1000.0)) == (300.0, "tokens/s")


def test_no_rate_is_known_of_one_look_of_a_repeated_one_and_across_a_restart():
    for before in (None, worker(110.0, 4000.0), worker(100.0, 5000.0)):
        assert rate(worker(110.0, 4000.0), before) is None


def test_a_learners_rate_is_the_mean_seconds_of_its_steps():
    assert rate(learner(4), None) == (7.5, "s a step")
    assert rate(learner(0), None) is None


def test_a_rate_stays_until_the_next_heartbeat_and_goes_with_its_process():
    seen = Seen()
    for at, tokens in ((100.0, 0.0), (102.0, 600.0), (102.0, 600.0)):
        seen.take({"rollout-0": worker(at, tokens)})
    assert seen.rate("rollout-0") == (300.0, "tokens/s")
    seen.take({"rollout-1": worker(104.0, 5.0)})
    assert (set(seen.now), seen.before) == ({"rollout-1"}, {})


@pytest.mark.parametrize(("tokens", "said"), [
    (25.0, "12.5 tokens/s"), (24690.0, "12,345 tokens/s"), (0.0, "0 tokens/s")])
def test_speeds_are_said_with_their_unit(tokens, said):
    seen = Seen(now={"w": worker(102.0, tokens)}, before={"w": worker(100.0, 0.0)})
    assert speed(seen, "w") == said


def test_the_first_line_says_step_version_and_staleness():
    assert summary(STATUS) == [
        "runs/a: not finished, step 3 of 30, version 1.3, trained on episodes 0.5 steps old (at most 1)",
        "  last step 4 s ago, success 25.0%"]
    assert summary(STATUS | {"seconds_since_step": None}) == ["runs/a: not finished, step 3 of 30"]


def test_the_first_rank_of_the_learner_stands_for_all():
    seen = Seen(now={"learner-0": learner(4)})
    assert table(seen, ranks=4)[1].split()[:2] == ["learner-0..3", "1.3"]
    assert table(seen)[1].split()[0] == "learner-0"


@contextmanager
def living(folder: RunFolder):
    """A run whose worker samples 500 tokens a second, and its environment server at rest."""
    began = time.time()

    def beats():
        now = time.time()
        return {"learner-0": learner(4), "rollout-0": worker(now, 500 * (now - began))}

    meters = Meters("environment")
    meters("gagpo_env_sessions").set(3)
    meters("gagpo_env_sessions_limit").set(64)
    meters("gagpo_env_steps_total").inc(10)
    server, thread = start_http_server(0, "127.0.0.1", registry=meters.registry)
    try:
        with serving(beats, host="127.0.0.1", port=0) as address:
            url = f"http://127.0.0.1:{server.server_port}"
            folder.targets.parent.mkdir(parents=True)
            folder.targets.write_text(json.dumps(target_groups("a", address, [url, "http://127.0.0.1:1"])))
            yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    path = tmp_path / "runs/a"
    path.mkdir(parents=True)
    dump_config(load_config("alfworld-tiny", ()), path / "config.yaml")
    return RunFolder(path)


def test_environment_servers_have_a_line_each_whatever_proxy_the_shell_names(folder, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    seen = Seen()
    with living(folder):
        for _ in range(2):
            seen.take(look(folder.path))
    lines = [line for line in table(seen) if line.startswith("  env ")]
    assert lines[0].endswith("3 of at most 64 sessions live")
    assert "0 steps/s" in lines[0]
    assert lines[1].endswith("does not answer")
    assert "steps/s" not in lines[1]


def test_a_single_status_has_rates_for_people_and_machines(folder):
    with living(folder):
        shown, plain = (subprocess.run([*COMMAND, str(folder.path), *options], text=True, check=True, timeout=60,
                                       stdout=subprocess.PIPE).stdout for options in ([], ["--json"]))
    assert re.search(r"learner-0 .* 7\.5 s a step", shown)
    found = {one["name"]: one for one in json.loads(plain)["processes"]}
    assert found["rollout-0"]["rate"] == pytest.approx(500, rel=0.01)
    assert (found["rollout-0"]["rate_unit"], found["rollout-0"]["doing"]) == ("tokens/s", "playing")
    assert [found[name]["rate"] for name in found if name.startswith("env ")] == [0.0, None]


def test_watch_says_it_again_until_it_is_interrupted(folder):
    command = [*COMMAND, str(folder.path), "--watch", "--json"]
    with living(folder), subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        looks = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    for look_ in looks:
        assert next(one for one in look_["processes"] if one["name"] == "rollout-0")["rate"] == pytest.approx(
            500, rel=0.01)
