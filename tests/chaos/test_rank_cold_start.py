"""A model of the user's is made to imitate on two learner ranks, before and after RL, and a rank and Ray die meanwhile.

The tests follow one run and stand in its order.
"""

import json
import os
import re
from pathlib import Path

import pytest

from deploy.runs.configs import load_config
from deploy.training.cold_start import cold_start
from learner.cold_start.states import state_steps
from services.telemetry.metrics_file import read_evaluations

pytestmark = [pytest.mark.long, pytest.mark.vllm, pytest.mark.ray, pytest.mark.timeout(1800)]

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


def goes_on(said: str) -> list[int]:
    """Returns the updates after which a run said that its cold start goes on."""
    return [int(update) for update in re.findall(r"the cold start continues after update (\d+)", said)]


@pytest.fixture
def quick_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets ranks write states from their first update on, for a third of the time: this cold start lasts seconds."""
    (tmp_path / "sitecustomize.py").write_text(
        "from learner.cold_start import states\nstates.LEAST_S, states.COST = 0.0, 1 / 3\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)


@pytest.mark.usefixtures("quick_states")
def test_it_outlives_a_rank_and_ray_and_then_trains_as_usual(train, runs_dir: Path, model: Path, monkeypatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    run = train(runs_dir / "own-ranks", *TINY, f"runs_dir={runs_dir}", "name=own-ranks", f"model.path={model}",
                "learner.ranks=2", "learner.cpus=0.5", "sft.epochs=2", "eval.compare_cold_start=true")
    states = runs_dir / "own-ranks" / ".model-cold-start.ranks"
    run.wait_for("a state", lambda: bool(state_steps(states)))
    reached = state_steps(states)[-1]
    run.titled(RANKS)[1].kill()
    run.wait_for("its going on", lambda: len(goes_on(run.said)) == 1)
    told = goes_on(run.said)[0]
    run.wait_for("a newer state", lambda: state_steps(states)[-1:] > [told])
    run.find("gcs_server").kill()
    run.wait_for("another Ray", lambda: "the cold start continues in a new one" in run.said)
    assert run.end() == 0, run.tail()
    assert run.survivors() == []
    assert "learner died" in run.said
    assert 0 < reached <= told
    assert [told < update for update in goes_on(run.said)] == [False, True]


def test_both_models_say_what_made_them(runs_dir: Path):
    folder = runs_dir / "own-ranks"
    cold, more = folder / "model-cold-start", folder / "model-more-cold-start"
    facts, again = (json.loads((path / "sft.json").read_text()) for path in (cold, more))
    assert facts["ranks"] == again["ranks"] == 2
    assert facts["training"]["rows"] == 2 * facts["demonstrations"]["rows"]
    assert again["continued_from"] == str(cold)
    assert not list(folder.glob(".*.ranks"))
    labels = [row["label"] for row in read_evaluations(folder / "evaluations.jsonl")]
    assert len(labels) == 3
