"""A run whose machine is lost goes on elsewhere from its copy in a real S3 server. Its books are right at the end."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import held_alfworld
import pytest
from object_store import BUCKET, object_store

from deploy.launch.planning.task_sets import open_task_sets
from deploy.runs.configs import load_config
from services.controller.tickets import TaskStream
from services.telemetry.metrics_file import read_rows

SETTINGS = (
    "name=lost", f"storage.url={BUCKET}/runs", "steps=4", "env.max_steps=6", "model.layers=1", "model.intermediate=64",
    "sft.demos_per_game=1", "sft.minutes=0.05", "rollout.slots=8", "rollout.kv_cache_gb=0.25",
    "learner.groups_per_step=2", "learner.group_size=2", "learner.threads=1", "eval.every=2", "eval.episodes=4",
    "eval.panel=0", "eval.compare_cold_start=false", "checkpoint.every=1", "env.name=held_alfworld:SPEC",
)
LIFE_S = 600.0

pytestmark = [pytest.mark.long, pytest.mark.vllm, pytest.mark.ray, pytest.mark.timeout(1800)]


@pytest.fixture
def stands_still_after_step_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run cannot end before it is killed."""
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    monkeypatch.setenv("HELD_TASKS", str(tmp_path / "held"))
    monkeypatch.setenv("PYTHONPATH", str(Path(held_alfworld.__file__).parent), prepend=os.pathsep)
    config = load_config("alfworld-tiny", SETTINGS)
    tasks = TaskStream(open_task_sets(config).train, config.seed)
    held_alfworld.hold(tasks[group] for group in range(2 * 2, 2 * 4))


@pytest.mark.usefixtures("stands_still_after_step_2")
def test_a_run_goes_on_elsewhere_after_the_loss_of_its_machine(train, tmp_path):
    from services.object_folder import ObjectFolder

    with object_store():
        copy = ObjectFolder(f"{BUCKET}/runs/lost")
        here, there = tmp_path / "here" / "lost", tmp_path / "there" / "lost"
        run = train(here, "--config", "alfworld-tiny", *SETTINGS, f"runs_dir={here.parent}")
        run.wait_for("a checkpoint in the object store", lambda: bool(copy.read("checkpoints/latest.json")), LIFE_S)
        run.clean_up()
        run.end(LIFE_S)
        shutil.rmtree(here)
        held_alfworld.hold(())
        again = train(there, "--resume", f"{BUCKET}/runs/lost", f"runs_dir={there.parent}")
        assert again.end(LIFE_S) == 0, again.tail()
        assert "continues after learner step" in again.said, again.tail()
        assert [row["step"] for row in read_rows(there / "metrics.jsonl")] == [1, 2, 3, 4]
        audit = subprocess.run([sys.executable, "-m", "deploy.cli", "audit", str(there)], capture_output=True,
                               text=True, timeout=120, check=False)
        assert audit.returncode == 0, audit.stdout + audit.stderr
        assert copy.read("summary.json") == (there / "summary.json").read_bytes()
