"""An agent that is written for another provider's client trains as it is."""

import os
from pathlib import Path

import agents_of_clients
import pytest

from services.telemetry.metrics_file import read_rows

pytestmark = [pytest.mark.long, pytest.mark.vllm, pytest.mark.ray, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parents[2]
SMALL = ("--config", str(ROOT / "examples/tool_agent/config.yaml"), "steps=2", "model.layers=1",
         "model.intermediate=64", "sft.epochs=1", "sft.minutes=0.1", "rollout.slots=8", "rollout.kv_cache_gb=0.25",
         "learner.groups_per_step=2", "learner.group_size=6", "learner.threads=1", "eval.panel=4",
         "eval.compare_cold_start=false", "agent.name=agents_of_clients:agent")


def test_agents_of_three_clients_train_for_two_steps(train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Each episode is played by another client. A fault of an agent would play its episode again, without an end."""
    played = tmp_path / "played"
    played.mkdir()
    monkeypatch.setenv("AGENTS_OF_CLIENTS", str(played))
    monkeypatch.setenv("PYTHONPATH", f"{Path(agents_of_clients.__file__).parent}:{ROOT}", prepend=os.pathsep)
    run = train(tmp_path / "runs" / "clients", *SMALL, f"runs_dir={tmp_path / 'runs'}", "name=clients")
    assert run.end() == 0, run.tail()
    assert {path.name for path in played.iterdir()} == {ask.__name__ for ask in agents_of_clients.CLIENTS}
    rows = read_rows(run.folder / "metrics.jsonl")
    assert [(row["step"], row["episodes"], row["reissued_episodes"]) for row in rows] == [
        (step, 12, 0) for step in range(1, 3)]
    assert max(row["logprob_difference_max"] for row in rows) < 1e-3, "the learner reads the tokens that were sampled"
