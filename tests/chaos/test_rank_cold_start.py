"""A model of the user's is made to imitate on two learner ranks, before and after RL, and a rank and Ray die meanwhile.

The tests follow one run and stand in its order.
"""

import json
from pathlib import Path

import pytest

from deploy.runs.configs import load_config
from deploy.training.cold_start import cold_start
from services.telemetry.metrics_file import read_evaluations

pytestmark = [pytest.mark.vllm, pytest.mark.ray, pytest.mark.timeout(1800)]

TINY = (
    "--config", "alfworld-tiny", "steps=1", "env.max_steps=12", "env.alfworld.task_types=[look]", "model.layers=1",
    "model.intermediate=64", "sft.demos_per_game=1", "rollout.slots=8", "rollout.kv_cache_gb=0.25",
    "learner.groups_per_step=2", "learner.group_size=2", "learner.threads=1", "eval.every=0", "eval.episodes=4",
    "eval.panel=4", "eval.panel_temperatures=[1.0]", "checkpoint.every=1",
)
RANKS = "ray::ImitatingRank"


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def model(runs_dir: Path) -> Path:
    """Provides a model that stands for the user's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("ALFWORLD_DATA", raising=False)
        return cold_start(load_config("alfworld-tiny", TINY[2:]), runs_dir / "own", minutes=0.01,
                          report=lambda _: None)


def test_it_outlives_a_rank_and_ray_and_then_trains_as_usual(train, runs_dir: Path, model: Path, monkeypatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    run = train(runs_dir / "own-ranks", *TINY, f"runs_dir={runs_dir}", "name=own-ranks", f"model.path={model}",
                "learner.ranks=2", "learner.cpus=0.5", "sft.epochs=1", "eval.compare_cold_start=true")
    run.wait_for("two ranks", lambda: len(run.titled(RANKS)) == 2)
    first = run.titled(RANKS)
    first[1].kill()
    run.wait_for("other ranks", lambda: len(set(run.titled(RANKS)) - set(first)) == 2)
    run.find("gcs_server").kill()
    run.wait_for("another Ray", lambda: "the cold start begins again in a new one" in run.said)
    assert run.end() == 0, run.tail()
    assert run.survivors() == []
    assert "learner died" in run.said


def test_both_models_say_what_made_them(runs_dir: Path):
    folder = runs_dir / "own-ranks"
    cold, more = folder / "model-cold-start", folder / "model-more-cold-start"
    facts, again = (json.loads((path / "sft.json").read_text()) for path in (cold, more))
    assert facts["ranks"] == again["ranks"] == 2
    assert facts["training"]["rows"] == facts["demonstrations"]["rows"]
    assert again["continued_from"] == str(cold)
    assert not list(folder.glob(".*.ranks"))
    labels = [row["label"] for row in read_evaluations(folder / "evaluations.jsonl")]
    assert len(labels) == 3
