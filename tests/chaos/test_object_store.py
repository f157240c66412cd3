"""A run whose machine is lost goes on elsewhere from its copy in a real S3 server. Its books are right at the end.

It trains one policy on two environments, and makes its cold start on both.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from object_store import BUCKET, object_store

from services.telemetry.metrics_file import read_evaluations, read_rows

pytestmark = [pytest.mark.long, pytest.mark.vllm, pytest.mark.ray, pytest.mark.timeout(1800)]

TWO = f"""base: parts/tiny-model
name: lost
steps: 3
storage: {{url: "{BUCKET}/runs"}}
env:
- {{name: guess, max_steps: 3, weight: 3, servers: 2}}
- {{name: search, max_steps: 4, prompt: compact, history: 3, reward_scale: 5}}
sft: {{minutes: 0.1, demos_per_game: 1}}
rollout: {{slots: 16, max_prompt_tokens: 640}}
learner: {{groups_per_step: 4, group_size: 2}}
eval: {{every: 2, episodes: 4, panel: 4, panel_temperatures: [1.0]}}
checkpoint: {{every: 1}}
"""
STEPS = 3
LIFE_S = 600.0


def test_a_run_goes_on_elsewhere_after_the_loss_of_its_machine(train, tmp_path: Path):
    from services.object_folder import ObjectFolder

    (tmp_path / "two.yaml").write_text(TWO)
    with object_store():
        copy = ObjectFolder(f"{BUCKET}/runs/lost")
        here, there = tmp_path / "here" / "lost", tmp_path / "there" / "lost"
        run = train(here, "--config", str(tmp_path / "two.yaml"), f"runs_dir={here.parent}")
        run.wait_for("a checkpoint in the object store", lambda: bool(copy.read("checkpoints/latest.json")), LIFE_S)
        run.clean_up()
        run.end(LIFE_S)
        shutil.rmtree(here)
        again = train(there, "--resume", f"{BUCKET}/runs/lost", f"runs_dir={there.parent}")
        assert again.end(LIFE_S) == 0, again.tail()
        assert "continues after learner step" in again.said, again.tail()
        audit = subprocess.run([sys.executable, "-m", "deploy.cli", "audit", str(there)], capture_output=True,
                               text=True, timeout=120, check=False)
        assert audit.returncode == 0, audit.stdout + audit.stderr
        assert copy.read("summary.json") == (there / "summary.json").read_bytes()
    check_both_environments(there)
    assert "    search-gen: " in again.said


def check_both_environments(run: Path) -> None:
    """Checks that each step, evaluation and table has the episodes of both environments in their shares."""
    rows = read_rows(run / "metrics.jsonl")
    assert [(row["step"], row["env/guess/groups"], row["env/search-gen/groups"]) for row in rows] == [
        (step, 3, 1) for step in range(1, STEPS + 1)]
    tables = [pq.read_table(file) for file in sorted((run / "episodes").glob("*.parquet"))]
    turns = [row for table in tables for row in table.to_pylist() if row["kind"] == "train"]
    assert {row["task"].partition("/")[0] for row in turns} == {"guess", "search-gen"}
    assert {row["task_type"].partition("/")[0] for row in turns} == {"guess", "search-gen"}
    prompts = {row["task"].partition("/")[0]: row["observation"] for row in turns if row["step"] == 0}
    assert "Guess my number" in prompts["guess"]
    assert {row["reward"] for row in turns if row["task"].startswith("guess")} <= {0.0, 10.0}
    assert {row["reward"] for row in turns if row["task"].startswith("search")} <= {0.0, 5.0}
    evaluations = read_evaluations(run / "evaluations.jsonl")
    assert {row["label"] for row in evaluations} >= {"step-000002", "step-000003", "panel-cold", "panel-trained"}
    assert all(row["success_by_env"].keys() == {"guess", "search-gen"} for row in evaluations)
    assert json.loads((run / "summary.json").read_text())["heldout"]["games"] == 4
