"""Folders of runs as training leaves them, with small numbers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from services.telemetry.metrics_file import METRIC_KEYS, append_row

ONLY_DRAWN = ("task_score", "episode_length", "credit/advantage_mean", "credit/advantage_std", "credit/advantage_min",
              "credit/advantage_max", "credit/advantage_iqr", "credit/share_above_one", "invalid_share",
              "inadmissible_share", "response_tokens_mean", "response_tokens_max", "prompt_tokens_mean",
              "prompt_tokens_max", "loss/policy", "logprob_difference_mean", "logprob_difference_max", "loss/entropy")


def make(folder: Path, *, seed: int = 0, success: float = 0.1, steps: int = 3, panel: bool = True,
         env: str = "alfworld", curves: bool = False, **learner: Any) -> Path:
    """A run of `steps` steps with the given success, no cut answer and all else 0.1; games won as its policy trains.

    Without `curves` it lacks the keys that only figures read: drawing all of them takes longer than all else.
    """
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(
        {"name": folder.name, "seed": seed, "steps": steps, "learner": learner, "env": {"name": "alfworld"},
         "sft": {"enabled": True, "minutes": 3.0}}))
    (folder / "run.json").write_text(f'{{"format": 1, "games": "9 games of {env} (digest)"}}')
    (folder / "summary.json").write_text(
        '{"format": 1, "engine": "own", "heldout": {"split": "heldout", "games": 2, "digest": "0123456789abcdef012"}}')
    (folder / "episodes").mkdir()
    for step in range(1, steps + 1):
        append_row(folder / "metrics.jsonl", {**dict.fromkeys(METRIC_KEYS, 0.1), "step": step, "version": f"1.{step}",
                                              **({} if curves else dict.fromkeys(ONLY_DRAWN)),
                                              "success_rate": success, "cut_share": 0.0})
        pq.write_table(pa.table({"advantage": [-2.0 * step, -0.5, 0.5, 2.0, None]}),
                       folder / "episodes" / f"step-{step:08d}.parquet")
    for label in ["step-000000", "panel-cold", "panel-trained"] if panel else ["step-000000"]:
        won = 1.0 if label == "panel-trained" else 0.0
        append_row(folder / "evaluations.jsonl", {
            "label": label, "step": 0, "temperature": 1.0, "split": "heldout", "tasks": 2, "success_rate": won,
            "success_low": won, "success_high": won, "success_by_task": {"a": won, "b": won}})
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Path]:
    """Provides `run("name", seed=..., success=...)`, which makes a folder."""
    return lambda name, **options: make(tmp_path / name, **options)
