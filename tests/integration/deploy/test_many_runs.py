"""A sweep of one run of two steps, a real `gagpo train`. Its agent is written for the clients of several providers."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import agents_of_clients
import pytest

from deploy.runs.configs import load_config
from deploy.training import sweep
from deploy.training.sweep import ABLATIONS
from services.config.tree import Config
from services.telemetry.metrics_file import read_rows

pytestmark = [pytest.mark.long, pytest.mark.vllm, pytest.mark.ray, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[3]
VARIANTS = ABLATIONS[:1]
"""Only this variant runs here. Unit tests check how the others differ."""


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Provides the folder in which each client leaves a file once it has read an answer."""
    folder = tmp_path_factory.mktemp("played")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("ALFWORLD_DATA", raising=False)
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("AGENTS_OF_CLIENTS", str(folder))
        patch.setenv("PYTHONPATH", f"{Path(agents_of_clients.__file__).parent}:{ROOT}", prepend=os.pathsep)
        yield folder


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return load_config(ROOT / "examples/tool_agent/config.yaml", [
        f"runs_dir={tmp_path_factory.mktemp('runs')}", "name=many", "steps=2", "model.layers=1",
        "model.intermediate=64", "sft.epochs=1", "sft.minutes=0.1", "rollout.slots=8", "rollout.kv_cache_gb=0.25",
        "learner.groups_per_step=2", "learner.group_size=6", "learner.threads=1", "eval.panel=4",
        "eval.panel_temperatures=[1.0]", "eval.compare_cold_start=false", "agent.name=agents_of_clients:agent"])


@pytest.fixture(scope="module")
def swept(config: Config, played: Path) -> sweep.Swept:
    return sweep.run_sweep(config, VARIANTS, quiet=True)


def test_a_sweep_ends_with_a_table(config: Config, swept: sweep.Swept):
    assert not swept.failures
    (line,) = json.loads((config.run_dir / "sweep.json").read_text())["table"]
    assert (line["variant"], line["games"], line["gain"]) == ("full", 4, None)
    assert len((config.run_dir / "sweep.txt").read_text().splitlines()) == 2


@pytest.mark.usefixtures("swept")
def test_agents_of_three_clients_train_for_two_steps(config: Config, played: Path):
    """Each episode is played by another client. A fault of an agent would play its episode again, without an end."""
    assert {path.name for path in played.iterdir()} == {ask.__name__ for ask in agents_of_clients.CLIENTS}
    rows = read_rows(config.run_dir / "full" / "metrics.jsonl")
    assert [(row["step"], row["episodes"], row["reissued_episodes"]) for row in rows] == [
        (step, 12, 0) for step in range(1, 3)]
    assert max(row["logprob_difference_max"] for row in rows) < 1e-3, "the learner reads the tokens that were sampled"


def test_a_finished_sweep_starts_nothing(config: Config, swept: sweep.Swept):
    metrics = config.run_dir / "full" / "metrics.jsonl"
    before = metrics.stat().st_mtime_ns
    assert sweep.run_sweep(config, VARIANTS, quiet=True) == swept
    assert metrics.stat().st_mtime_ns == before
