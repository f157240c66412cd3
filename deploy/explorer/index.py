"""The groups of a run's archive. Each parquet file has a small index, so that no page reads whole files.

An index is made once per file, from its small columns, and cached as JSON under `<run>/.explorer/`. If the size or time
of a file changes, its index is made again. A refresh finds new files, so the explorer follows an active run. If the
folder cannot be written, the indexes are only kept in memory.
"""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from deploy.runs.history import unreadable
from services.files import Damaged, read_json, write_whole
from services.parquet_files import ARCHIVE_ROWS, open_parquet, read_table
from services.store.archive import FILE_NAME

FORMAT = 4
"""Format of the cached indexes. An index of another format is made again."""
ROUNDING = 1e-9
"""Returns that differ by less are equal: the same rewards in another order have another sum."""
_OF_GROUPS = ("group", "task", "outcome", "reason", "temperature")
_TYPE = "task_type"
"""Column that archives of formats 1 and 2 lack."""
_OF_STEPS = ("k", "step", "won", "valid", "reward", "state_key")
_READ = ("end", "worker", "attempt", "observation", "action", "admissible", "version", "prompt_tokens", "tokens",
         "logprobs", "return", "value", "delta", "advantage")
"""Further columns that archives of all formats have, and that groups.py reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEntry:
    """One group of one archive file. Lengths are in environment steps, returns are undiscounted."""

    file: str
    """The parquet file's name without its ending."""
    step: int
    """Learner step that trained on it. For an evaluation, the step of its version."""
    group: str
    task: str
    kind: str
    """The task type by its environment. In archives without it, the type in its id: see kind_of."""
    outcome: str
    """trained, evaluated or dropped."""
    reason: str
    temperature: float
    episodes: int
    won: int
    steps: int
    length: float
    """Mean number of turns of its episodes."""
    mean_return: float
    spread: float
    """Standard deviation of the episodes' returns (population)."""
    invalid: float
    """Share of turns with invalid output."""
    singletons: float | None
    """Share of turns whose state no other turn of the group has. None: no state keys, because it was not trained on."""
    row_groups: tuple[int, ...]
    """Numbers of the parquet row groups that hold its rows."""

    @property
    def success(self) -> float:
        """Returns the share of won episodes."""
        return self.won / self.episodes


class _CachedIndex(msgspec.Struct, frozen=True):
    """Content of a cached index. Each row has the values of `columns` for one GroupEntry."""

    format: int
    stamp: tuple[int, int]
    columns: list[str]
    rows: list[list[Any]]


class ArchiveIndex:
    """The groups of one run, in order of files and of their place in them. Thread-safe."""

    def __init__(self, run: Path) -> None:
        self._episodes, self._cache = run / "episodes", run / ".explorer"
        self._files: dict[str, tuple[tuple[int, int], list[GroupEntry]]] = {}
        self._unreadable: dict[str, tuple[tuple[int, int], str]] = {}
        self._lock = threading.Lock()

    @property
    def warnings(self) -> list[str]:
        """Returns a warning for each file that could not be read at the last refresh."""
        return [said for _, said in self._unreadable.values()]

    def refresh(self) -> None:
        """Indexes new and replaced files and forgets deleted ones. Cheap: it compares size and time of each file.

        A file that cannot be read gives one warning and is ignored until it is replaced. Other threads see the groups
        from before until all files are indexed.
        """
        with self._lock:
            found = dict(self._stamps())
            files = {name: known for name, known in self._files.items() if found.get(name) == known[0]}
            torn = {name: known for name, known in self._unreadable.items() if found.get(name) == known[0]}
            for name in sorted(found.keys() - files.keys() - torn.keys()):
                try:
                    files[name] = found[name], self._index(name, found[name])
                except FileNotFoundError:
                    continue  # deleted meanwhile; the next refresh forgets it
                except (OSError, ValueError, LookupError, TypeError, NotImplementedError, Damaged) as error:
                    torn[name] = found[name], unreadable(self._episodes / name, error)  # no parquet, or not ours
            self._files, self._unreadable = dict(sorted(files.items())), torn

    def groups(self) -> list[GroupEntry]:
        """Returns the groups as of the last refresh."""
        return [entry for _, entries in self._files.values() for entry in entries]

    def find(self, file: str, group: str) -> GroupEntry | None:
        """Returns the entry of a group, or None."""
        _, entries = self._files.get(f"{file}.parquet", (None, []))
        return next((entry for entry in entries if entry.group == group), None)

    def _stamps(self) -> Iterator[tuple[str, tuple[int, int]]]:
        if not self._episodes.is_dir():
            return
        for item in os.scandir(self._episodes):
            if FILE_NAME.fullmatch(item.name):
                with suppress(FileNotFoundError):
                    stat = item.stat()
                    yield item.name, (stat.st_size, stat.st_mtime_ns)

    def _index(self, name: str, stamp: tuple[int, int]) -> list[GroupEntry]:
        cached = self._cache / f"{name}.json"
        # An index of another format or file, or a damaged one, is made again.
        with suppress(OSError, ValueError, Damaged, msgspec.ValidationError):
            index = read_json(cached, _CachedIndex)
            if index.format == FORMAT and index.stamp == stamp:
                return [_entry_of_row(name, index.columns, row) for row in index.rows]
        entries = index_file(self._episodes / name)
        with suppress(OSError):  # no permission to write: it is made again at the next start
            _write(cached, stamp, entries)
        return entries


def kind_of(task: str) -> str:
    """Guesses a task's type from its id: the name before the first `-` in the deciding part. "" for a plain number.

    `alfworld/train/pick_heat_then_place_in_recep-Mug-None/trial_T2019` is of type pick_heat_then_place_in_recep.
    """
    parts = task.split("/")
    name = parts[2] if len(parts) > 2 else parts[-1]
    return name.partition("-")[0].rstrip("0123456789_ ")


def index_file(path: Path) -> list[GroupEntry]:
    """Returns the groups of one archive file. Raises FileNotFoundError, OSError if it is not a parquet file, and
    ValueError if it is not one of ours."""
    with open_parquet(path, rows=ARCHIVE_ROWS) as file:
        for name in (*_OF_GROUPS, *_OF_STEPS, *_READ):
            if name not in file.schema_arrow.names:
                raise ValueError(f"it has no column {name}")
        of_groups = [name for name in (*_OF_GROUPS, _TYPE) if name in file.schema_arrow.names]
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        table = read_table(file, path, [*of_groups, *_OF_STEPS])
        for name in (*_OF_GROUPS, *_OF_STEPS):
            if name != "state_key" and table.column(name).null_count:
                raise ValueError(f"{name} has no value in a row")
    match = FILE_NAME.fullmatch(path.name)
    assert match is not None
    steps = {name: table.column(name).to_pylist() for name in _OF_STEPS}
    at = np.repeat(np.arange(len(sizes)), sizes)
    order: dict[str, list[int]] = {}
    for i, group in enumerate(table.column("group").to_pylist()):
        order.setdefault(group, []).append(i)
    return [_entry(path.stem, int(match[1]), {name: table.column(name)[where[0]].as_py() for name in of_groups},
                   {name: [values[i] for i in where] for name, values in steps.items()}, at[where])
            for where in order.values()]


def _entry(file: str, step: int, group: dict[str, Any], rows: dict[str, list[Any]],
           at: npt.NDArray[np.intp]) -> GroupEntry:
    """Makes an entry. `group`: values that all rows share. `rows`: other columns. `at`: the row group of each row."""
    returns: dict[int, float] = {}
    for k, reward in zip(rows["k"], rows["reward"], strict=True):
        returns[k] = returns.get(k, 0.0) + reward
    earned = [*returns.values()]
    keys, steps = rows["state_key"], len(at)
    return GroupEntry(
        **{name: group[name] for name in _OF_GROUPS}, kind=group.get(_TYPE) or kind_of(group["task"]), file=file,
        step=step, episodes=len(returns),
        won=len({k for k, won in zip(rows["k"], rows["won"], strict=True) if won}), steps=steps,
        length=steps / len(returns), mean_return=float(np.mean(earned)),
        spread=float(np.std(earned)) if max(earned) - min(earned) > ROUNDING else 0.0,
        invalid=rows["valid"].count(False) / steps,
        singletons=None if keys[0] is None else list(Counter(keys).values()).count(1) / steps,
        row_groups=tuple(np.unique(at).tolist()))


def _entry_of_row(file: str, columns: list[str], row: list[Any]) -> GroupEntry:
    """Returns the entry in a row of the cached index of `file`. Raises ValueError or msgspec.ValidationError."""
    entry = msgspec.convert(dict(zip(columns, row, strict=True)), GroupEntry)
    if f"{entry.file}.parquet" != file or min(entry.episodes, entry.steps) < 1 or min(entry.row_groups) < 0:
        raise ValueError("it is not an index of this file")
    return entry


def _write(path: Path, stamp: tuple[int, int], entries: list[GroupEntry]) -> None:
    """Writes an index atomically, because several explorers may show one run."""
    path.parent.mkdir(exist_ok=True)
    names = [field.name for field in fields(GroupEntry)]
    rows = [[getattr(entry, name) for name in names] for entry in entries]
    write_whole(path, json.dumps({"format": FORMAT, "stamp": stamp, "columns": names, "rows": rows}))
