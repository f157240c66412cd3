"""`gagpo status` about a run, with real endpoints whose counters grow at a known rate."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest
from heartbeats import learner, worker
from prometheus_client import start_http_server

from deploy import cli
from deploy.commands.status import read_status, summary, table
from deploy.launch.monitoring import target_groups
from deploy.runs.configs import lay_over, load_config
from deploy.runs.folder import RunFolder
from deploy.runs.history import RunHistory
from deploy.runs.live_status import Seen, look
from deploy.runs.stage import Stage, StageRecord, read_stage, this_host
from services.config.file import dump_config
from services.telemetry.exposition import serving
from services.telemetry.meters import Meters
from services.telemetry.metrics_file import append_row
from services.telemetry.task_types import type_columns

COMMAND = [sys.executable, "-m", "deploy.cli", "status"]
STATUS = {
    "run": "runs/a", "state": "going on", "stage": "reinforcement learning", "stage_seconds": 75.0, "doing": "",
    "silent_seconds": 1.0, "ended": "", "step": 3, "steps": 30, "seconds_since_step": 4.2, "success_rate": 0.25,
    "version": "1.3", "staleness_mean": 0.5, "staleness_max": 1, "evaluations": [], "learner_ranks": 1,
    "stand_ins": [], "warnings": [], "damaged": [], "verdicts": [], "next": [], "step_times": None, "task_types": {}}


def test_the_first_line_says_stage_step_version_and_staleness():
    assert summary(STATUS) == [
        "runs/a: reinforcement learning for 1 min, learner step 3 of 30, version 1.3, "
        "trained on episodes 0.5 steps old (at most 1)", "  last step 4 s ago, success 25.0%"]
    assert summary(STATUS | {"seconds_since_step": None, "state": "not finished", "stage": None}) == [
        "runs/a: not finished, learner step 3 of 30"]


def test_it_says_where_the_seconds_of_a_step_went():
    times = {"steps": 3, "seconds": {"sampling": 6.0, "passes": 3.0, "rest": 1.0}, "sampled": 12.0, "trained": 345.0}
    assert summary(STATUS | {"step_times": times})[2] == (
        "  time: 10 s a step: sampling 60%, passes 30%, rest 10%; 12 tokens/s sampled, 345 trained")


def test_during_the_cold_start_it_says_how_far_that_is(folder):
    with StageRecord(folder.stage_file) as record:
        record.set("cold start", "1.3 of 4.0 min: 812 updates")
        found = summary(read_status(folder, RunHistory(folder)))
    assert found == [f"{folder.path}: cold start for 0 s, learner step 0 of 30", "  1.3 of 4.0 min: 812 updates"]


def test_after_an_interruption_it_says_how_where_and_what_goes_on(folder):
    def interrupted() -> None:
        with StageRecord(folder.stage_file) as record:
            record.set("cold start", "half way")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    first, *rest = summary(read_status(folder, RunHistory(folder)))
    assert re.fullmatch(r"interrupted by Ctrl-C, \d+ s ago, in the stage `cold start`, learner step 0 of 30",
                        first.removeprefix(f"{folder.path}: "))
    assert rest == ["  next:", f"    gagpo train --resume {folder.path}"]


def kill(folder: RunFolder) -> None:
    """Leaves what a driver leaves that was killed."""
    with StageRecord(folder.stage_file):
        pass
    left = msgspec.structs.replace(read_stage(folder.stage_file), ended="", born=1.0, name="reinforcement learning")
    folder.stage_file.write_bytes(msgspec.json.encode(left))


def test_a_driver_that_was_killed_is_gone(folder):
    kill(folder)
    (line, *_) = summary(read_status(folder, RunHistory(folder)))
    assert re.search(r"interrupted: its process is gone, \d+ s ago, in the stage `reinforcement learning`", line)


def test_a_clock_that_was_set_back_makes_no_time_negative(folder):
    later = time.time() + 6583
    append_row(folder.metrics, {"step": 3, "time": later})
    folder.stage_file.write_bytes(msgspec.json.encode(Stage(
        name="cold start", since=later, at=later, host=this_host(), pid=1, born=0.0, ended="stopped")))
    status = read_status(folder, RunHistory(folder))
    assert [status[f"{what}_seconds"] for what in ("stage", "silent")] + [status["seconds_since_step"]] == [0, 0, 0]
    assert "-6" not in "".join(table(Seen(now={"rollout-0": worker(later, 0)})))


def test_at_the_end_it_says_verdict_and_next_commands(folder):
    for label, won in (("panel-cold", 0.0), ("panel-trained", 1.0)):
        append_row(folder.evaluations, {"label": label, "step": 30, "temperature": 1.0, "success_rate": won, "tasks": 2,
                                        "split": "heldout", "success_low": won, "success_high": won,
                                        "env": "alfworld-gen", "pass_at": {"2": won}, "pass_at_low": {"2": 0.0},
                                        "pass_at_high": {"2": 1.0},
                                        "success_by_task": {"a": won, "b": won}})
    folder.summary.write_text("{}")
    found = summary(read_status(folder, RunHistory(folder)))
    assert found[0] == f"{folder.path}: finished, learner step 0 of 30"
    assert any(line.startswith("  held-out games, after RL, T=1: 100.0% [100.0%, 100.0%] on 2 games of heldout, pass@2 "
                               "100.0% [0.0%, 100.0%]") for line in found)
    assert ("  verdict: 0% -> 100% at T=1, +100 points [-68, 100], no difference shown (2 held-out games of "
            "alfworld-gen, not of alfworld, one seed)") in found
    assert "  played on alfworld-gen: these results are not results on alfworld" in found
    assert any(line.startswith(f"    gagpo explore {folder.path} ") for line in found)


def test_a_finished_run_whose_longer_life_failed_is_not_finished(folder):
    def failing() -> None:
        with StageRecord(folder.stage_file):
            raise ValueError("no such checkpoint")

    folder.summary.write_text("{}")
    with pytest.raises(ValueError, match="no such checkpoint"):
        failing()
    said = summary(read_status(folder, RunHistory(folder)))[0].removeprefix(f"{folder.path}: ")
    assert re.match(r"ValueError: no such checkpoint, \d+ s ago", said)


def test_the_shares_of_bad_answers_are_shown_of_the_last_step_and_of_each_evaluation(folder):
    shares = {"invalid_share": 0.989, "inadmissible_share": 0.0, "cut_share": 0.926}
    append_row(folder.metrics, {"step": 3, "time": time.time(), "success_rate": 0.0, "version": "1.3",
                                "staleness_mean": 0.0, "staleness_max": 0, **shares})
    append_row(folder.evaluations, {"label": "step-000000", "step": 0, "split": "valid", "temperature": 1.0, "tasks": 2,
                                    "success_rate": 0.0, "success_low": 0.0, "success_high": 0.8,
                                    "success_by_task": {"a": 0.0, "b": 0.0}, **shares | {"cut_share": 0.0}})
    status = read_status(folder, RunHistory(folder))
    lines = summary(status)
    assert "success 0.0%  invalid 98.9%  inadmissible 0.0%  cut 92.6%" in lines[1]
    assert lines[2].endswith("on 2 games of valid  invalid 98.9%  inadmissible 0.0%")
    assert [status["invalid_share"], status["evaluations"][0]["cut_share"]] == [0.989, 0.0]


def test_the_weights_of_task_types_are_shown(folder):
    """Two groups of pick in the last ten steps, of contrast 1 and 0: weight .1 + .9 / 2. Step 1 of 11 is too old."""
    for step, groups in ((1, [("cool", 0.5)]), (10, [("pick", 0.5), ("pick", 1.0)]), (11, [])):
        append_row(folder.metrics, {"step": step, "time": time.time(), **type_columns(groups)})
    status = read_status(folder, RunHistory(folder))
    assert status["task_types"] == {"pick": {"groups": 2, "success": 0.75, "contrast": 0.5, "weight": 0.55}}
    assert "  task type pick: weight 0.55, success 75.0% in 2 groups of the last 10 steps" in summary(status)


def test_warnings_are_shown():
    assert summary(STATUS | {"warnings": ["it collapses"]})[-1] == "  warning: it collapses"


def test_a_run_may_be_given_by_its_name_and_a_typo_is_told_the_nearest(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder.path.parents[1])
    assert cli.main(["status", "a"]) == 0
    assert capsys.readouterr().out.startswith("runs/a: not finished")
    assert cli.main(["status", "runs/aa"]) == 2
    assert capsys.readouterr().err == "error: runs/aa is not the folder of a run; did you mean runs/a?\n"


@contextmanager
def living(folder: RunFolder):
    """Provides a run whose worker samples 500 tokens a second, and its idle environment server."""
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
        thread.join(60)


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    path = tmp_path / "runs/a"
    path.mkdir(parents=True)
    dump_config(load_config("alfworld-tiny", ()), path / "config.yaml")
    (path / "run.json").write_text("{}")
    return RunFolder(path)


@pytest.mark.parametrize("command", ["status", "scale", "audit"])
def test_a_run_is_told_of_without_its_model_which_another_machine_or_user_has(folder, monkeypatch, capsys, command):
    """It was fetched from the hub: gigabytes for a line of status, and an error without a network."""
    def fetch(*_: object, **__: object) -> None:
        pytest.fail("the model is asked for")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    cached = f"/nowhere/hub/models--acme--tiny/snapshots/{'0' * 40}"
    config = lay_over(load_config(folder.config_file), {"model.path": cached, "model.download": True})
    dump_config(config, folder.config_file)
    assert cli.main([command, str(folder.path)]) == 0, capsys.readouterr().err


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


def test_the_processes_of_another_run_at_a_killed_drivers_address_are_not_its_own(folder):
    kill(folder)
    with living(folder):
        assert look(folder.path) == {}


def test_a_run_whose_processes_cannot_be_asked_from_here_says_where_they_can(folder, capsys):
    """The default of metrics.host is the driver's own machine alone."""
    now = time.time()
    stage = Stage(name="reinforcement learning", since=now, at=now, host="node-7 boot-id pid:[1]", pid=1, born=0.0)
    folder.stage_file.write_bytes(msgspec.json.encode(stage))
    assert cli.main(["status", str(folder.path)]) == 0
    assert "do not answer" not in capsys.readouterr().out  # it has not told its address yet
    folder.targets.parent.mkdir(parents=True)
    folder.targets.write_text(json.dumps(target_groups("a", "127.0.0.1:1", [])))
    assert cli.main(["status", str(folder.path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "  its processes do not answer at 127.0.0.1:1: ask on node-7, or give metrics.host an address that other "
        "machines reach")


class Guarded(BaseHTTPRequestHandler):
    """An environment server's metrics, for those who have its token."""

    def do_GET(self) -> None:
        right = self.headers.get("authorization") == "Bearer not-a-secret"
        self.send_response(200 if right else 401)
        self.end_headers()
        if right:
            self.wfile.write(b"gagpo_env_sessions 3\ngagpo_env_sessions_limit 64\n")

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.mark.parametrize(("secret", "said"), [
    ("not-a-secret", "3 of at most 64 sessions live"), (None, "does not answer")])
def test_the_metrics_of_given_servers_are_asked_for_with_the_runs_token(tmp_path, monkeypatch, secret, said):
    """A machine that lacks the token shows the rest of the run."""
    monkeypatch.delenv("GAGPO_ENV_TOKEN", raising=False)
    folder, token = RunFolder(tmp_path / "runs" / "a"), tmp_path / "token"
    folder.path.mkdir(parents=True)
    if secret:
        token.write_text(secret)
    with ThreadingHTTPServer(("127.0.0.1", 0), Guarded) as guarded, serving(
            dict, host="127.0.0.1", port=0) as address:
        threading.Thread(target=guarded.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{guarded.server_port}"
        dump_config(load_config("alfworld-tiny", (f"env.urls=[{url}]", f"env.token_file={token}")), folder.config_file)
        folder.targets.parent.mkdir(parents=True)
        folder.targets.write_text(json.dumps(target_groups("a", address, [url])))
        assert [beat.doing for beat in look(folder.path).values()] == [said]
        guarded.shutdown()


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
    with living(folder), subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        looks = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[1] == ""
        assert process.returncode == 0
    for look_ in looks:
        assert next(one for one in look_["processes"] if one["name"] == "rollout-0")["rate"] == pytest.approx(
            500, rel=0.01)


def test_ctrl_c_ends_a_watch_that_has_just_begun(folder):
    """Before its first lines it waits for a second heartbeat."""
    asked = threading.Event()

    def beats():
        asked.set()
        return {"learner-0": learner(4)}

    with serving(beats, host="127.0.0.1", port=0) as address:
        folder.targets.parent.mkdir(parents=True)
        folder.targets.write_text(json.dumps(target_groups("a", address, [])))
        with subprocess.Popen([*COMMAND, str(folder.path), "--watch"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True) as process:
            assert asked.wait(60)
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=60) == ("", "")
            assert process.returncode == 0


def test_a_run_that_is_moved_while_it_is_watched_is_told_as_one_that_is_not_there(folder):
    """Its missing config.yaml was told as a config's, with the names of all that are shipped."""
    command = [*COMMAND, str(folder.path), "--watch", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        folder.path.rename(folder.path.with_name("moved"))
        assert process.wait(60) == 2
        assert process.stderr.read().startswith(f"error: {folder.path} is not the folder of a run")
