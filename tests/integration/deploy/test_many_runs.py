"""A sweep and an experiment of one-step runs: real `gagpo train` processes from one cold start."""

import json
import re
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from deploy.launch.planning.task_sets import open_task_sets
from deploy.runs.configs import load_config
from deploy.runs.folder import RunFolder
from deploy.training import sweep
from deploy.training.sweep import ABLATIONS
from lab.experiments.credit.common import keep_cold_evaluations, prepare
from lab.experiments.credit.design import PlannedRun
from lab.experiments.credit.progress import RunsProgress
from lab.experiments.credit.records import read_records
from lab.experiments.credit.runs import Runner, left
from services.config.tree import Config

pytestmark = [pytest.mark.long, pytest.mark.vllm, pytest.mark.ray, pytest.mark.timeout(1800)]

VARIANTS = ABLATIONS[:1]
"""Only this variant runs here. Unit tests check how the others differ."""


@pytest.fixture(scope="module", autouse=True)
def _generated_games():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("ALFWORLD_DATA", raising=False)
        patch.delenv("RAY_ADDRESS", raising=False)
        yield


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return load_config("alfworld-tiny", [
        f"runs_dir={tmp_path_factory.mktemp('runs')}", "name=many", "steps=1", "env.max_steps=6", "model.layers=1",
        "model.intermediate=64", "sft.demos_per_game=1", "sft.minutes=0.05", "rollout.slots=8",
        "rollout.kv_cache_gb=0.25", "learner.groups_per_step=2", "learner.group_size=2", "learner.threads=1",
        "eval.every=1", "eval.episodes=4", "eval.panel=4", "eval.panel_temperatures=[1.0]", "checkpoint.every=1"])


@pytest.fixture(scope="module")
def swept(config: Config) -> sweep.Swept:
    return sweep.run_sweep(config, VARIANTS, quiet=True)


def test_a_sweep_ends_with_a_table(config: Config, swept: sweep.Swept):
    assert not swept.failures
    (line,) = json.loads((config.run_dir / "sweep.json").read_text())["table"]
    assert (line["variant"], line["games"], line["gain"]) == ("full", 4, None)
    assert len((config.run_dir / "sweep.txt").read_text().splitlines()) == 2


def test_a_finished_sweep_starts_nothing(config: Config, swept: sweep.Swept):
    metrics = config.run_dir / "full" / "metrics.jsonl"
    before = metrics.stat().st_mtime_ns
    assert sweep.run_sweep(config, VARIANTS, quiet=True) == swept
    assert metrics.stat().st_mtime_ns == before


def test_a_run_of_an_experiment_leaves_its_record_alone(config: Config, swept: sweep.Swept, tmp_path: Path):
    """It starts from the cold start of another run, and does not play that policy's games again."""
    full = RunFolder(config.run_dir / "full")
    shutil.copytree(full.cold_model, tmp_path / "cold-start")
    mine = config.model_copy(update={"name": "experiment"})
    progress = RunsProgress(1, console=Console(quiet=True))
    common = prepare(mine, open_task_sets(mine), tmp_path, progress)
    keep_cold_evaluations(tmp_path, common, full)
    run = PlannedRun(arm="grpo", seed=3)
    assert left(tmp_path, [run], mine, common) == [run]
    assert Runner(config=mine, out=tmp_path, common=common, progress=progress).make([run]) == 0
    (record,) = read_records(tmp_path)
    assert (record.arm, record.seed, len(record.curves["grad_norm"]), record.cold_start) == (
        "grpo", 3, 1, common["cold_start"])
    assert [(row["label"], len(row["wins"])) for row in record.evaluations] == [
        ("step-000001", 4), ("panel-trained", 4)]
    # Each is told while it plays, and at its end.
    log = (mine.run_dir / f"{run.name}.log").read_text()
    told = re.findall(r"\] (evaluation\b.*?|held-out games\b.*?)(?::|  T=)", log)
    assert list(dict.fromkeys(told)) == ["evaluation at step 1", "held-out games, after RL"]
    assert not (mine.run_dir / run.name).exists()
    assert left(tmp_path, [run], mine, prepare(mine, open_task_sets(mine), tmp_path, progress)) == []
