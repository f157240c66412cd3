"""metrics.jsonl and evaluations.jsonl. Light."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from services.files import read_bounded, write_whole
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
FILE_BYTES = 1 << 30
"""The largest file that is read: a line has one or two kilobytes, so that is half a million learner steps."""
EVALUATED = frozenset(("label", "temperature"))
"""Keys that each line of evaluations.jsonl has."""
_FIGURE = (int, float, str, type(None))
_KINDS: dict[str, Any] = {
    "label": str, "version": str, "split": str, "temperature": (int, float), "tasks": int, "time": (int, float),
    "success_by_task": dict, "success_by_type": dict, "score_by_task": dict, "groups": list, "drops": list}
"""Kinds of values by key; all others are figures or text."""


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
    """All whole lines in order; [] without a file. Raises Damaged where it is no plain file, or larger than FILE_BYTES.

    Left out are lines that a crash has torn, and those of which a value has another kind than its key allows.
    """
    try:
        lines = read_bounded(path, FILE_BYTES).splitlines()
    except FileNotFoundError:
        return []
    return [row for row in map(whole_row, lines) if row is not None]


def whole_row(line: bytes) -> MetricsRow | None:
    """The row of one line; None for a damaged one."""
    try:
        row = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    step = row.get("step", 0)
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < 1 << 53:
        return None
    return row if all(isinstance(value, _KINDS.get(key, _FIGURE)) for key, value in row.items()) else None


def read_metrics(path: Path) -> list[MetricsRow]:
    """One row per learner step, in order: a step that a resumed run took again counts as it was taken last."""
    return last_of_each_step(read_rows(path))


def last_of_each_step(rows: Iterable[MetricsRow]) -> list[MetricsRow]:
    """Rows of metrics.jsonl, the last one of each learner step, by step."""
    last = {row["step"]: row for row in rows if "step" in row}
    return [last[step] for step in sorted(last)]


def read_evaluations(path: Path) -> list[MetricsRow]:
    """One row per label and temperature, in order: what was evaluated again counts as it was evaluated last."""
    return last_of_each_evaluation(read_rows(path))


def last_of_each_evaluation(rows: Iterable[MetricsRow]) -> list[MetricsRow]:
    """Rows of evaluations.jsonl, the last one of each label and temperature, in order of the first."""
    return list({(row["label"], row["temperature"]): row for row in rows if row.keys() >= EVALUATED}.values())


def drop_rows(path: Path, *, after_step: int) -> None:
    """Takes the rows of later steps out: a run that goes on from a checkpoint takes those steps again."""
    rows = read_rows(path)
    kept = [row for row in rows if row.get("step", 0) <= after_step]
    if len(kept) == len(rows):
        return
    write_whole(path, "".join(json.dumps(row) + "\n" for row in kept))
