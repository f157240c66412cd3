"""metrics.jsonl and evaluations.jsonl. Light."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from services.telemetry.names import PHASES
from services.telemetry.overhead import counted

FORMAT = 1
METRIC_KEYS = (
    "step", "version", "time", "success_rate", "episode_return", "episode_length", "invalid_share",
    "inadmissible_share", "episodes", "env_steps", "tokens_sampled", "tokens_trained", "staleness_mean",
    "staleness_max", "dropped_groups", "reissued_episodes", "replays", *(f"seconds/{phase}" for phase in PHASES),
    "loss/policy", "loss/value", "loss/kl", "loss/entropy", "grad_norm", "clip_fraction", "ratio_mean",
    "logprob_difference_mean", "logprob_difference_max", "credit/group_size_mean", "credit/singleton_share",
    "credit/active_share", "credit/flat_share", "credit/advantage_iqr", "credit/share_above_one",
    "credit/share_2_4", "credit/share_5_8", "credit/share_above_8",
)
"""Keys of one line of metrics.jsonl: others read them, so the list is frozen."""

MetricsRow = dict[str, Any]


def check_metrics(row: Mapping[str, Any]) -> None:
    """Raises ValueError where a row of metrics.jsonl lacks a key or has one that is not in METRIC_KEYS."""
    missing, extra = set(METRIC_KEYS) - set(row), set(row) - set(METRIC_KEYS)
    if missing or extra:
        raise ValueError(f"metrics row: missing {sorted(missing)}, unknown {sorted(extra)}")


@counted("metrics")
def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Appends one object with its `format`, on disk when this returns.

    A line torn by a crash is closed first, so it spoils no other. JSON knows no NaN or infinity: they become null.
    """
    line = json.dumps({"format": FORMAT, **_plain(row)}, allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else f"\n{line}"
        file.write(f"{line}\n".encode())
        file.flush()
        os.fsync(file.fileno())


def _plain(value: Any) -> Any:
    """Values that JSON holds: numpy's scalars as numbers, the non-finite as null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_rows(path: Path) -> list[MetricsRow]:
    """All whole lines in order; [] without a file. A line torn by a crash is left out."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def read_metrics(path: Path) -> list[MetricsRow]:
    """One row per learner step, in order: a step that a resumed run took again counts as it was taken last."""
    return last_of_each_step(read_rows(path))


def last_of_each_step(rows: Iterable[MetricsRow]) -> list[MetricsRow]:
    """Rows of metrics.jsonl, the last one of each learner step, by step."""
    last = {row["step"]: row for row in rows}
    return [last[step] for step in sorted(last)]


def read_evaluations(path: Path) -> list[MetricsRow]:
    """One row per label and temperature, in order: what was evaluated again counts as it was evaluated last."""
    return last_of_each_evaluation(read_rows(path))


def last_of_each_evaluation(rows: Iterable[MetricsRow]) -> list[MetricsRow]:
    """Rows of evaluations.jsonl, the last one of each label and temperature, in order of the first."""
    return list({(row["label"], row["temperature"]): row for row in rows}.values())


def drop_rows(path: Path, *, after_step: int) -> None:
    """Takes the rows of later steps out: a run that goes on from a checkpoint takes those steps again."""
    rows = read_rows(path)
    kept = [row for row in rows if row["step"] <= after_step]
    if len(kept) == len(rows):
        return
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)

