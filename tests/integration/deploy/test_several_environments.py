"""Two environments in one run: a cold start on both, two learner steps, an end between them, and the table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from services.telemetry.metrics_file import read_evaluations, read_rows

pytestmark = [pytest.mark.long, pytest.mark.vllm, pytest.mark.ray, pytest.mark.timeout(1200)]
TWO = """base: parts/tiny-model
name: two
env:
- {name: guess, max_steps: 3, weight: 3, servers: 2}
- {name: search, max_steps: 4, prompt: compact, history: 3, reward_scale: 5}
sft: {minutes: 0.3, demos_per_game: 1}
rollout: {slots: 16, max_prompt_tokens: 640}
learner: {groups_per_step: 4, group_size: 2}
eval: {every: 1, episodes: 4, panel: 4, panel_temperatures: [1.0]}
"""


def train(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {key: value for key, value in os.environ.items() if key not in ("ALFWORLD_DATA", "RAY_ADDRESS")}
    return subprocess.run(
        [sys.executable, "-m", "gagpo", "train", "--config", str(folder / "two.yaml"), f"runs_dir={folder / 'runs'}",
         *arguments], env=environ, capture_output=True, text=True, timeout=550, check=False)


def test_two_environments_train_one_policy_and_the_run_goes_on(tmp_path: Path):
    (tmp_path / "two.yaml").write_text(TWO)
    run = tmp_path / "runs" / "two"
    for steps in (1, 2):
        done = train(tmp_path, f"steps={steps}", *(["--resume"] if steps == 2 else []))
        assert done.returncode == 0, done.stderr
    rows = read_rows(run / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2], "the second start took the second step alone"
    assert [(row["env/guess/groups"], row["env/search-gen/groups"]) for row in rows] == [(3, 1), (3, 1)]
    tables = [pq.read_table(file) for file in sorted((run / "episodes").glob("*.parquet"))]
    turns = [row for table in tables for row in table.to_pylist() if row["kind"] == "train"]
    assert {row["task"].partition("/")[0] for row in turns} == {"guess", "search-gen"}
    assert {row["task_type"].partition("/")[0] for row in turns} == {"guess", "search-gen"}
    prompts = {row["task"].partition("/")[0]: row["observation"] for row in turns if row["step"] == 0}
    assert "Guess my number" in prompts["guess"]
    assert {row["reward"] for row in turns if row["task"].startswith("guess")} <= {0.0, 10.0}
    assert {row["reward"] for row in turns if row["task"].startswith("search")} <= {0.0, 5.0}
    evaluations = read_evaluations(run / "evaluations.jsonl")
    assert {row["label"] for row in evaluations} >= {"step-000001", "step-000002", "panel-cold", "panel-trained"}
    assert all(row["success_by_env"].keys() == {"guess", "search-gen"} for row in evaluations)
    assert len(read_rows(run / "ledger.jsonl")) == 2
    assert "    search-gen: " in done.stdout
    summary = json.loads((run / "summary.json").read_text())
    assert summary["heldout"]["games"] == 4
