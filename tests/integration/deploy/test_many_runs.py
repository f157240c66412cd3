"""A sweep of one-step runs: real `gagpo train` processes."""

import json

import pytest

from deploy.runs.configs import load_config
from deploy.training import sweep
from deploy.training.sweep import ABLATIONS
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
