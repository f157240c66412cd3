"""Reads and writes metrics.jsonl and evaluations.jsonl. Light."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from services.files import NOT_JSON, read_bounded, write_whole
from services.patience import while_folder_away
from services.telemetry.metric_keys import METRIC_KEYS
from services.telemetry.overhead import counted
from services.units import GIB

FORMAT = 1

MetricsRow = dict[str, Any]


class _Row(MetricsRow):
    """One line. A key that it lacks reads as null, because other versions have other keys and files get damaged.

    Where readers need a value it is one that claims nothing: an unknown interval is [0, 1].
    """

    def __missing__(self, key: str) -> Any:
        return _BLANK.get(key)


_BLANK: Mapping[str, Any] = {
    "step": 0, "time": 0.0, "version": "", "split": "", "tasks": 0, "episodes": 0, "success_low": 0.0,
    "success_high": 1.0, "success_by_task": {}, "success_by_type": {}}
FILE_BYTES = GIB
"""Largest file that is read. A line has one or two kilobytes, so this is half a million learner steps."""
EVALUATED = ("label", "temperature", "success_rate")
"""Values that each line of evaluations.jsonl has."""
GIVEN = "given"
"""Key of an evaluation that another run of the same cold start has made, and whose episodes are in its archive."""
LARGEST = 1e150
"""Largest absolute value of a number. Nothing measures more, and the square or sum of larger ones is not finite."""
_FIGURE = (int, float, str, type(None))
_NUMBER = (int, float, type(None))
_KINDS: dict[str, Any] = {
    **dict.fromkeys((*METRIC_KEYS, "success_low", "success_high"), _NUMBER),
    "label": str, "version": str, "split": str, "temperature": (int, float), "tasks": int, "time": (int, float),
    "success_by_task": dict, "success_by_type": dict, "score_by_task": dict, "groups": list, "drops": list,
    **{f"{name}{end}": dict for name in ("pass_at", "best_score") for end in ("", "_low", "_high")}}
"""Types of values by key. All other values are numbers or text, and those of a dict are numbers."""


def check_metrics(row: Mapping[str, Any]) -> None:
    """Raises ValueError if a row of metrics.jsonl lacks a key or has one that is not in METRIC_KEYS."""
    missing, extra = set(METRIC_KEYS) - set(row), set(row) - set(METRIC_KEYS)
    if missing or extra:
        raise ValueError(f"metrics row: missing {sorted(missing)}, unknown {sorted(extra)}")


@counted("metrics")
def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Appends one object with its `format`, and flushes it to disk before it returns.

    If a crash left half a line, a newline is written first, so that only this line is lost. NaN and infinity become
    null, because JSON has no such numbers. Raises OSError, also without the folder, which is never made here: a mount
    that comes back would hide the new one with the row in it.
    """
    line = json.dumps({"format": FORMAT, **_plain(row)}, allow_nan=False)
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else f"\n{line}"
        file.write(f"{line}\n".encode())
        file.flush()
        os.fsync(file.fileno())


def keep_row(path: Path, row: Mapping[str, Any], *, wait_s: float,
             note: Callable[[str], object] = lambda _: None) -> None:
    """Appends one object as append_row does. Waits up to `wait_s` for a full disk or a folder that is away.

    Raises DeadlineExceeded after that. `note` takes a line that says what is waited for.
    """
    while_folder_away(partial(append_row, path, row), seconds=wait_s, what=f"{path} could not be written", note=note)


def _plain(value: Any) -> Any:
    """Returns a value that JSON can hold: numpy scalars as numbers, numbers that are not finite as null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_rows(path: Path) -> list[MetricsRow]:
    """Returns all whole lines in order, or [] without a file. Raises Damaged for a file that is too large or not plain.

    It leaves out lines that a crash cut short, and lines with a value that its key does not allow.
    """
    try:
        lines = read_bounded(path, FILE_BYTES).splitlines()
    except FileNotFoundError:
        return []
    return [row for row in map(whole_row, lines) if row is not None]


def cut_short(line: bytes) -> bool:
    """Returns whether a line lacks its end, as one that a crash cut short or that is being written."""
    if line[:1] not in (b"", b"{"):
        return False
    try:
        msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        return "truncated" in str(error)
    except (UnicodeDecodeError, RecursionError):
        return False
    return False


def whole_row(line: bytes) -> MetricsRow | None:
    """Returns the row of one line, or None if the line is damaged."""
    try:
        row = msgspec.json.decode(line, type=dict[str, Any])
    except NOT_JSON:
        return None
    step = row.get("step", 0)
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < 1 << 53:
        return None
    if not all(_fits(value, _KINDS.get(key, _FIGURE)) for key, value in row.items()):
        return None
    return _Row({key: value for key, value in row.items() if value is not None or key not in _BLANK})


def _fits(value: Any, kinds: Any) -> bool:
    """Returns whether a value has one of the types, and whether the numbers in it are ones that readers can add up."""
    if isinstance(value, dict):
        return kinds is dict and all(_fits(item, _NUMBER) for item in value.values())
    return isinstance(value, kinds) and (not isinstance(value, int | float) or abs(value) <= LARGEST)


def read_metrics(path: Path) -> list[MetricsRow]:
    """Returns one row per learner step, in order. If a resumed run repeated a step, its last row counts."""
    return last_of_each_step(read_rows(path))


def last_of_each_step(rows: Iterable[MetricsRow]) -> list[MetricsRow]:
    """Returns the last row of metrics.jsonl for each learner step, sorted by step."""
    last = {row["step"]: row for row in rows if "step" in row}
    return [last[step] for step in sorted(last)]


def read_evaluations(path: Path) -> list[MetricsRow]:
    """Returns one row per label and temperature, in order. If an evaluation was repeated, its last row counts."""
    return last_of_each_evaluation(read_rows(path))


def last_of_each_evaluation(rows: Iterable[MetricsRow]) -> list[MetricsRow]:
    """Returns the last row of evaluations.jsonl for each label and temperature, in order of their first rows."""
    return list({(row["label"], row["temperature"]): row for row in rows
                 if all(row.get(key) is not None for key in EVALUATED)}.values())


def drop_rows(path: Path, *, after_step: int, wait_s: float = 0.0) -> None:
    """Removes the rows of later steps, because a run that resumes from a checkpoint takes those steps again.

    Waits up to `wait_s` for a full disk or a folder that is away. Raises DeadlineExceeded after that.
    """
    while_folder_away(partial(_drop_rows, path, after_step), seconds=wait_s, what=f"{path} could not be written")


def _drop_rows(path: Path, after_step: int) -> None:
    rows = read_rows(path)
    kept = [row for row in rows if row.get("step", 0) <= after_step]
    if len(kept) < len(rows):
        write_whole(path, "".join(json.dumps(row) + "\n" for row in kept))
