"""A tiny run that is interrupted, resumed and loses its servers ends with the weights of an undisturbed run.

The tests follow one run through its life and stand in its order. Where a test breaks the run, the games of its next
step stop in the middle, so that the run is there on a fast machine too. A Prometheus watches all of it, so that at the
end every dashboard can be asked what it shows. An intruder puts pickles into the folder before the resume, and looks
for secrets of the undisturbed run.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import held_alfworld
import psutil
import pyarrow.parquet as pq
import pytest
from canaries import Watch, files_with, plant_pickles, private_secrets
from dashboards import list_queries
from processes import gone
from prometheus_api import ask, shows

from deploy.launch.planning.task_sets import open_task_sets
from deploy.monitor.servers import prometheus
from deploy.runs.configs import load_config
from services.controller.task_streams import TaskStream
from services.store.redis_server import find_redis
from services.telemetry.metrics_file import read_rows

pytestmark = [pytest.mark.vllm, pytest.mark.ray, pytest.mark.timeout(1800)]

STEPS = 4
TINY = (
    "--config", "alfworld-tiny", f"steps={STEPS}", "env.max_steps=6", "model.layers=1", "model.intermediate=64",
    "sft.demos_per_game=1", "sft.minutes=0.05", "rollout.slots=8", "rollout.kv_cache_gb=0.25", "rollout.exact=true",
    "learner.groups_per_step=2", "learner.group_size=2", "learner.threads=1", "eval.every=2", "eval.episodes=4",
    "eval.compare_cold_start=false", "checkpoint.every=1", "env.name=held_alfworld:SPEC",
)
GROUPS = 2
"""Groups of a step."""


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module", autouse=True)
def hold_after(runs_dir: Path) -> Iterator[Callable[[int], None]]:
    """Provides `hold_after(step)`: the games of later steps stop in the middle, until it is called with another one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("ALFWORLD_DATA", raising=False)
        patch.setenv("HELD_TASKS", str(runs_dir / "held"))
        patch.setenv("PYTHONPATH", str(Path(held_alfworld.__file__).parent), prepend=os.pathsep)
        config = load_config("alfworld-tiny", TINY[2:])
        tasks = TaskStream(open_task_sets(config).train, config.seed)
        yield lambda step: held_alfworld.hold(tasks[group] for group in range(GROUPS * step, GROUPS * STEPS))


@pytest.fixture(scope="module", autouse=True)
def watched(runs_dir: Path) -> Iterator[str | None]:
    """Provides the address of a Prometheus; None if it is not installed."""
    if shutil.which("prometheus") is None:
        yield None
    else:
        with prometheus(runs_dir, port=0) as url:
            yield url


@pytest.fixture(scope="module")
def arguments(runs_dir: Path) -> tuple[str, ...]:
    return (*TINY, f"runs_dir={runs_dir}", "name=hunted", "eval.panel=4", "eval.panel_temperatures=[1.0]")


@dataclass(frozen=True, kw_only=True)
class Calm:
    """The undisturbed run, and its traces."""

    folder: Path
    traces: list[Path]
    """Everything that the run wrote: its folder, its temporary files, what it printed."""
    secrets: dict[str, str]
    watch: Watch


@pytest.fixture(scope="module")
def calm(train, runs_dir: Path, hold_after) -> Iterator[Calm]:
    """Provides a run to its end, from the cold start of the interrupted run if that is there."""
    hold_after(STEPS)
    folder, cold_start = runs_dir / "calm", runs_dir / "hunted" / "model-cold-start"
    given = ("sft.enabled=false", f"model.path={cold_start}") if cold_start.exists() else ()
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as temporary:  # short, because sockets are in it
        run = train(folder, *TINY, f"runs_dir={runs_dir}", "name=calm", "eval.panel=0", *given,
                    temporary=Path(temporary))
        found: list[tuple[dict[str, str], int]] = []

        def secrets_exist() -> bool:
            found.extend(filter(None, [private_secrets(run.process.pid, folder)]))
            return bool(found)

        run.wait_for("its secrets", secrets_exist)
        watch = Watch(run.process.pid, *found[0])
        watch.start()
        status = run.end()
        watch.end()
        assert status == 0, run.tail()
        yield Calm(folder=folder, traces=[folder, Path(temporary), run.log.parent], secrets=found[0][0], watch=watch)


def test_ctrl_c_in_the_middle_leaves_no_process(train, runs_dir: Path, arguments, hold_after):
    hold_after(1)
    run = train(runs_dir / "hunted", *arguments)
    run.wait_for("a first step", lambda: bool(run.steps))
    run.ctrl_c()
    hold_after(2)  # a server that stops waits for its steps
    assert run.end() == 130, run.tail()
    assert run.tail().splitlines()[-2:] == [
        f"to continue: gagpo train --resume {runs_dir / 'hunted'}", "error: interrupted"], run.tail()
    assert len(run.started) > 5
    assert run.survivors() == []
    assert len(run.steps) < STEPS


def test_a_run_without_resume_is_refused(train, runs_dir: Path, arguments):
    run = train(runs_dir / "hunted", *arguments)
    assert run.end() == 2
    assert "holds a run already" in run.tail()


def test_resumed_it_outlives_the_death_of_ray_redis_its_server_learner_and_sampler(
        train, runs_dir: Path, hold_after, tmp_path: Path):
    """It loads its checkpoints, and runs no code that its folder brings."""
    assert plant_pickles(runs_dir / "hunted", tmp_path / "code-ran") > 5
    run = train(runs_dir / "hunted", "--resume", str(runs_dir / "hunted"))
    taken = len(run.steps)
    hold_after(taken + 1)
    run.wait_for("where it goes on", lambda: "] continues" in run.said)
    run.find("ray::LearnerRank")
    run.find("gcs_server").kill()
    run.wait_for("another Ray", lambda: "the private Ray died (GCS); starting everything in a new one" in run.said)
    run.wait_for("a step after the resume", lambda: len(run.steps) > taken)
    before = len(run.said)
    run.find("gagpo-redis").kill()
    run.find("ray::LearnerRank").kill()
    run.find("serve-env").kill()
    run.wait_for("the environment server's death", lambda: "environment server 0 died" in run.said[before:])
    engine = run.find("EngineCore")
    run.find("ray::RolloutHost").kill()
    psutil.wait_procs([engine], 60)
    hold_after(STEPS)
    assert gone(engine.pid), "the engine outlived its worker"
    assert run.end() == 0, run.tail()
    assert run.survivors() == []
    assert "rollout worker 0 died" in run.said
    assert "learner died" in run.said
    said = run.said + (run.folder / "log.jsonl").read_text()
    assert "is renamed" not in said, "the checkpoint with the pickles was not the one that was loaded"
    assert not (tmp_path / "code-ran").exists()


def test_every_step_was_taken_once_on_groups_of_its_own(runs_dir: Path):
    folder = runs_dir / "hunted"
    assert [row["step"] for row in read_rows(folder / "metrics.jsonl")] == [1, 2, 3, 4]
    files = [folder / "episodes" / f"step-{step:08d}.parquet" for step in range(1, STEPS + 1)]
    groups = [{(row["group"], row["k"]) for row in pq.read_table(file).to_pylist()} for file in files]
    assert groups == [{(f"train/{2 * step + n:08d}", k) for n in range(2) for k in range(2)} for step in range(STEPS)]


def test_every_evaluation_is_there_once(runs_dir: Path):
    rows = read_rows(runs_dir / "hunted" / "evaluations.jsonl")
    assert [(row["label"], row["step"], row["tasks"], row["dropped"]) for row in rows] == [
        ("step-000000", 0, 4, 0), ("step-000002", 2, 4, 0), ("step-000004", 4, 4, 0), ("panel-cold", 0, 4, 0),
        ("panel-trained", 4, 4, 0)]
    assert rows[0]["digest"] == rows[3]["digest"]
    assert rows[2]["digest"] == rows[4]["digest"]


def test_no_ticket_was_lost_or_counted_twice(runs_dir: Path):
    done = subprocess.run([sys.executable, "-m", "deploy.cli", "audit", str(runs_dir / "hunted")], capture_output=True,
                          text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith("clean: no group was lost or trained twice\n")
    assert "8 trained" in done.stdout


def test_status_says_that_it_is_finished(runs_dir: Path):
    assert (runs_dir / "hunted" / "report.html").stat().st_size > 10_000
    out = subprocess.run([sys.executable, "-m", "deploy.cli", "status", str(runs_dir / "hunted"), "--json"],
                         capture_output=True, text=True, timeout=240, check=True).stdout
    status = json.loads(out)
    assert (status["state"], status["step"], status["steps"]) == ("finished", STEPS, STEPS)


def test_a_finished_run_is_resumed_by_printing_its_table(train, runs_dir: Path, arguments):
    """No process is started, and only the report is written."""
    folder = runs_dir / "hunted"
    before = {name: (folder / name).read_bytes() for name in ("metrics.jsonl", "evaluations.jsonl", "summary.json")}
    run = train(folder, *arguments, "--resume")
    assert run.end() == 0, run.tail()
    assert "before RL" in run.tail()
    assert "after RL" in run.tail()
    assert "Ray" not in run.tail()
    assert {name: (folder / name).read_bytes() for name in before} == before


def test_undisturbed_it_ends_with_the_same_bits(calm: Calm, runs_dir: Path):
    """With rollout.exact, the same cold start and seed give the same weights after every interruption."""
    digests = [{row["step"]: row["digest"] for row in read_rows(folder / "evaluations.jsonl")
                if row["label"].startswith("step-")} for folder in (runs_dir / "hunted", calm.folder)]
    assert digests[0] == digests[1]
    assert len(set(digests[0].values())) == 3


@pytest.mark.attack
def test_a_private_run_shows_none_of_its_own_secrets_and_leaves_none(calm: Calm):
    assert len(set(calm.secrets.values())) == 3
    assert {find_redis().name, "gcs_server", "raylet"} <= calm.watch.names
    assert calm.watch.found == set()
    found, count = files_with(calm.secrets, calm.traces)
    assert count > 20
    assert found == set()


@pytest.mark.attack
def test_a_private_run_listens_on_loopback_alone(calm: Calm):
    assert calm.watch.listening == {"127.0.0.1"}


def test_every_panel_of_every_dashboard_shows_something_of_these_runs(watched: str | None):
    if watched is None:
        pytest.skip("prometheus is not installed")
    without_value = {
        "FLOP utilisation": "only on GPUs",
        "Replays": "whether a session was lost depends on the moment in which the server died",
    }
    dark = {f"{query.dashboard}, {query.panel}: {query.expr}" for query in list_queries()
            if query.panel not in without_value and not shows(watched, query.expr)}
    assert dark == set()


def test_every_alert_could_be_evaluated(watched: str | None):
    if watched is None:
        pytest.skip("prometheus is not installed")
    (group,) = ask(watched, "rules")["groups"]
    assert {rule["name"]: rule.get("lastError", "") for rule in group["rules"] if rule["health"] != "ok"} == {}
