"""What is in a run's archive, group by group: one small index per parquet file, so that no page reads whole files.

An index is made once per file, from its narrow columns, and kept as JSON under `<run>/.explorer/`. A replaced file has
another size or time, and its index is made anew; a new file is found at the next refresh, so the explorer follows a run
that trains. Where the folder cannot be written the indexes are kept in memory alone.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from deploy.runs.history import unreadable
from services.files import write_whole

FORMAT = 2
"""Of the cached indexes: others are made anew."""
FILE = re.compile(r"step-(\d{8,})(?:-(.+))?\.parquet")
_OF_GROUPS = ("group", "task", "outcome", "reason", "temperature")
_TYPE = "task_type"
"""Archives of formats 1 and 2 lack it."""
_OF_STEPS = ("k", "won", "valid", "reward", "state_key")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEntry:
    """One group of one archive file. Lengths are in environment steps, returns are undiscounted."""

    file: str
    """The parquet file's name without its ending."""
    step: int
    """Learner step that trained on it; of an evaluation, the step of its version."""
    group: str
    task: str
    kind: str
    """The task's type as its environment names it; in archives that do not say, as its id does: see kind_of."""
    outcome: str
    """trained, evaluated or dropped."""
    reason: str
    temperature: float
    episodes: int
    won: int
    steps: int
    length: float
    """Mean over episodes."""
    mean_return: float
    spread: float
    """Standard deviation of the episodes' returns (population)."""
    invalid: float
    """Share of steps."""
    singletons: float | None
    """Share of steps whose state no other step of the group has; None: no state keys, as it was not trained on."""
    row_groups: tuple[int, ...]
    """Where in the file its rows are."""

    @property
    def success(self) -> float:
        """Share of episodes won."""
        return self.won / self.episodes


class ArchiveIndex:
    """The groups of one run, in order of file and of place in it. Threads may share it."""

    def __init__(self, run: Path) -> None:
        self._episodes, self._cache = run / "episodes", run / ".explorer"
        self._files: dict[str, tuple[tuple[int, int], list[GroupEntry]]] = {}
        self._unreadable: dict[str, tuple[tuple[int, int], str]] = {}
        self._lock = threading.Lock()

    @property
    def warnings(self) -> list[str]:
        """A line for each file that could not be read at the last refresh."""
        return [said for _, said in self._unreadable.values()]

    def refresh(self) -> None:
        """Takes in what is new, replaced or gone. Cheap where nothing is: one look at each file's size and time."""
        with self._lock:
            found = dict(self._stamps())
            self._files = {name: self._files[name] for name in sorted(found)
                           if name in self._files and self._files[name][0] == found[name]}
            self._unreadable = {name: known for name, known in self._unreadable.items()
                                if found.get(name) == known[0]}
            for name in sorted(set(found) - set(self._files) - set(self._unreadable)):
                self._take(name, found[name])
            self._files = dict(sorted(self._files.items()))

    def _take(self, name: str, stamp: tuple[int, int]) -> None:
        """One new file. A file that cannot be read is named once and left alone until it is replaced."""
        try:
            self._files[name] = stamp, self._index(name, stamp)
        except FileNotFoundError:
            return  # deleted since: it is gone at the next refresh too
        except (OSError, ValueError, LookupError) as error:  # no parquet file, or none of ours
            self._unreadable[name] = stamp, unreadable(self._episodes / name, error)

    def groups(self) -> list[GroupEntry]:
        """As of the last refresh."""
        return [entry for _, entries in list(self._files.values()) for entry in entries]

    def find(self, file: str, group: str) -> GroupEntry | None:
        """None where there is no such group."""
        _, entries = self._files.get(f"{file}.parquet", (None, []))
        return next((entry for entry in entries if entry.group == group), None)

    def _stamps(self) -> Iterator[tuple[str, tuple[int, int]]]:
        if not self._episodes.is_dir():
            return
        for item in os.scandir(self._episodes):
            if FILE.fullmatch(item.name):
                with suppress(FileNotFoundError):
                    stat = item.stat()
                    yield item.name, (stat.st_size, stat.st_mtime_ns)

    def _index(self, name: str, stamp: tuple[int, int]) -> list[GroupEntry]:
        cached = self._cache / f"{name}.json"
        with suppress(OSError, ValueError, TypeError, KeyError):  # of another format or damaged: made anew
            known = json.loads(cached.read_text())
            if known["format"] == FORMAT and known["stamp"] == list(stamp):
                return [_known(known["columns"], row) for row in known["rows"]]
        entries = index_file(self._episodes / name)
        with suppress(OSError):  # not ours to write: it is made again at the next start
            _write(cached, stamp, entries)
        return entries


def kind_of(task: str) -> str:
    """A task's type, guessed: the last but decisive part of its id up to the first `-`; empty for a mere number.

    `alfworld/train/pick_heat_then_place_in_recep-Mug-None/trial_T2019` is of type pick_heat_then_place_in_recep.
    """
    parts = task.split("/")
    name = parts[2] if len(parts) > 2 else parts[-1]
    return name.partition("-")[0].rstrip("0123456789_ ")


def index_file(path: Path) -> list[GroupEntry]:
    """The groups of one archive file. Raises FileNotFoundError, and OSError for one that is no parquet file."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        of_groups = [name for name in (*_OF_GROUPS, _TYPE) if name in file.schema_arrow.names]
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        # So few columns are read sooner than threads for them are started.
        table = file.read_row_groups(range(len(sizes)), columns=[*of_groups, *_OF_STEPS], use_threads=False)
    match = FILE.fullmatch(path.name)
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
    """`group`: what its rows have in common; `rows`: the columns that they differ in; `at`: the row group of each."""
    returns: dict[int, float] = {}
    for k, reward in zip(rows["k"], rows["reward"], strict=True):
        returns[k] = returns.get(k, 0.0) + reward
    keys, steps = rows["state_key"], len(at)
    return GroupEntry(
        **{name: group[name] for name in _OF_GROUPS}, kind=group.get(_TYPE) or kind_of(group["task"]), file=file,
        step=step, episodes=len(returns),
        won=len({k for k, won in zip(rows["k"], rows["won"], strict=True) if won}), steps=steps,
        length=steps / len(returns), mean_return=float(np.mean(list(returns.values()))),
        spread=float(np.std(list(returns.values()))), invalid=rows["valid"].count(False) / steps,
        singletons=None if keys[0] is None else list(Counter(keys).values()).count(1) / steps,
        row_groups=tuple(np.unique(at).tolist()))


def _known(names: list[str], row: list[Any]) -> GroupEntry:
    values: dict[str, Any] = dict(zip(names, row, strict=True))
    values["row_groups"] = tuple(values["row_groups"])
    return GroupEntry(**values)


def _write(path: Path, stamp: tuple[int, int], entries: list[GroupEntry]) -> None:
    """Atomic: several explorers may look at one run."""
    path.parent.mkdir(exist_ok=True)
    names = [field.name for field in fields(GroupEntry)]
    rows = [[getattr(entry, name) for name in names] for entry in entries]
    write_whole(path, json.dumps({"format": FORMAT, "stamp": stamp, "columns": names, "rows": rows}))
