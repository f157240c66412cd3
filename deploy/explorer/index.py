"""The groups of a run's archive. Each parquet file has a small index, so that no page reads entire files.

An index is made once per file, from its small columns, and cached as JSON under `<run>/.explorer/`. If the size or time
of a file changes, its index is made again. A refresh finds new files, so the explorer follows an active run. If the
folder cannot be written, the indexes are only kept in memory.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, field_validator

from deploy.runs.history import unreadable
from services.files import Damaged, read_json, write_whole
from services.parquet_files import ARCHIVE_ROWS, open_parquet, read_table
from services.store.archive import FILE_NAME, evaluation_part, file_name
from services.telemetry.evaluations import TITLES, on_curve

FORMAT = 5
"""Format of the cached indexes. An index of another format is made again."""
ROUNDING = 1e-9
"""Returns that differ by less are equal: the same rewards in another order have another sum."""
_OF_GROUPS = ("group", "task", "outcome", "reason", "temperature")
_TYPE = "task_type"
"""Column without a value where an episode's ticket had no type."""
_OF_STEPS = ("k", "step", "won", "valid", "reward", "state_key")
_READ = ("end", "worker", "attempt", "observation", "action", "admissible", "version", "prompt_tokens", "prompt_ids",
         "tokens", "logprobs", "learner_logprobs", "return", "value", "baseline", "delta", "raw_advantage", "advantage",
         "final_observation", "tag", "judged", "verdicts", "cut", "choices")
"""Further columns that groups.py reads."""


class GroupEntry(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One group of one archive file. Lengths are in environment steps, returns are undiscounted."""

    file: str
    """The parquet file's name without its ending."""
    step: int
    """Learner step that trained on it. For an evaluation, the step of its version."""
    group: str
    task: str
    kind: str
    """The task type that the environment gave, else the one in the task's id (kind_of)."""
    outcome: str
    """trained, evaluated or dropped."""
    reason: str
    temperature: float
    episodes: Annotated[int, msgspec.Meta(ge=1)]
    won: int
    steps: Annotated[int, msgspec.Meta(ge=1)]
    length: float
    """Mean number of turns of its episodes."""
    mean_return: float
    spread: float
    """Standard deviation of the episodes' returns (population)."""
    invalid: float
    """Share of turns with invalid output."""
    singletons: float | None
    """Share of turns whose state no other turn of the group has. None: no state keys, because it was not trained on."""
    row_groups: Annotated[tuple[Annotated[int, msgspec.Meta(ge=0)], ...], msgspec.Meta(min_length=1)]
    """Numbers of the parquet row groups that hold its rows."""

    @property
    def success(self) -> float:
        """Returns the share of won episodes."""
        return self.won / self.episodes


class _CachedIndex(msgspec.Struct, frozen=True):
    format: int
    stamp: tuple[int, int]
    """Size and time of the archive file."""
    groups: list[GroupEntry]


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
        return [text for _, text in self._unreadable.values()]

    def refresh(self) -> None:
        """Indexes new and replaced files and forgets deleted ones. Cheap: it compares size and time of each file.

        A file that cannot be read gives one warning and is ignored until it is replaced. Other threads see the groups
        from before until all files are indexed.
        """
        with self._lock:
            stamps = dict(self._stamps())
            files = {name: entry for name, entry in self._files.items() if stamps.get(name) == entry[0]}
            torn = {name: entry for name, entry in self._unreadable.items() if stamps.get(name) == entry[0]}
            for name in sorted(stamps.keys() - files.keys() - torn.keys()):
                try:
                    files[name] = stamps[name], self._index(name, stamps[name])
                except FileNotFoundError:
                    continue  # deleted meanwhile; the next refresh forgets it
                except (OSError, ValueError, LookupError, TypeError, NotImplementedError, Damaged) as error:
                    torn[name] = stamps[name], unreadable(self._episodes / name, error)  # no parquet, or not ours
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
        with suppress(OSError, Damaged):
            index = read_json(cached, _CachedIndex)
            if (index.format, index.stamp) == (FORMAT, stamp) and all(f"{one.file}.parquet" == name
                                                                      for one in index.groups):
                return index.groups
        groups = index_file(self._episodes / name)
        with suppress(OSError):  # no permission to write: it is made again at the next start
            cached.parent.mkdir(exist_ok=True)
            write_whole(cached, msgspec.json.encode(_CachedIndex(format=FORMAT, stamp=stamp, groups=groups)))
        return groups


def kind_of(task: str) -> str:
    """Guesses a task's type from its id: the name before the first `-` in the deciding part. "" for a plain number.

    `alfworld/train/pick_heat_then_place_in_recep-Mug-None/trial_T2019` is of type pick_heat_then_place_in_recep.
    """
    parts = task.split("/")
    name = parts[2] if len(parts) > 2 else parts[-1]
    return name.partition("-")[0].rstrip("0123456789_ ")


def index_file(path: Path) -> list[GroupEntry]:
    """Returns the groups of one archive file. Raises FileNotFoundError, OSError or ValueError if it is not a parquet
    file of ours, and Damaged if it is too large."""
    of_groups = (*_OF_GROUPS, _TYPE)
    with open_parquet(path, rows=ARCHIVE_ROWS) as file:
        for name in (*of_groups, *_OF_STEPS, *_READ):
            if name not in file.schema_arrow.names:
                raise ValueError(f"it has no column {name}")
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
        **{name: group[name] for name in _OF_GROUPS}, kind=group[_TYPE] or kind_of(group["task"]), file=file,
        step=step, episodes=len(returns),
        won=len({k for k, won in zip(rows["k"], rows["won"], strict=True) if won}), steps=steps,
        length=steps / len(returns), mean_return=float(np.mean(earned)),
        spread=float(np.std(earned)) if max(earned) - min(earned) > ROUNDING else 0.0,
        invalid=rows["valid"].count(False) / steps,
        singletons=None if keys[0] is None else list(Counter(keys).values()).count(1) / steps,
        row_groups=tuple(np.unique(at).tolist()))


PAGE = 50
ORDERS: dict[str, Callable[[GroupEntry], Any]] = {
    "step": lambda entry: (entry.step, entry.file, entry.group),
    "task": lambda entry: entry.task,
    "outcome": lambda entry: entry.outcome,
    "success": lambda entry: entry.success,
    "return": lambda entry: entry.mean_return,
    "spread": lambda entry: entry.spread,
    "length": lambda entry: entry.length,
    "singletons": lambda entry: -1.0 if entry.singletons is None else entry.singletons,
    "invalid": lambda entry: entry.invalid,
}
"""Sort keys of the list of groups, by name."""


Sort = Literal["step", "task", "outcome", "success", "return", "spread", "length", "singletons", "invalid"]
assert set(get_args(Sort)) == set(ORDERS)


class Choice(BaseModel):
    """The filters and order of the list of groups. They are the query of the page, so a link shows the same list."""

    sort: Sort = "step"
    desc: bool = False
    outcome: str = ""
    kind: str = ""
    task: str = ""
    """Text that the task id must contain."""
    first: int | None = None
    last: int | None = None
    mixed: bool = False
    """Whether only groups whose episodes have different returns are shown."""
    page: int = 1

    @field_validator("first", "last", mode="before")
    @classmethod
    def _unset(cls, value: object) -> object:
        """An empty field of the form sets no bound."""
        return None if value == "" else value


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPage:
    """One page of groups."""

    entries: list[GroupEntry]
    total: int
    page: int
    pages: int
    kinds: list[str]
    outcomes: list[str]


def choose(entries: Sequence[GroupEntry], choice: Choice) -> GroupPage:
    """Returns the requested page, or the last one if there are fewer."""
    kept = [entry for entry in entries if _fits(entry, choice)]
    kept.sort(key=ORDERS[choice.sort], reverse=choice.desc)
    pages = max(1, -(-len(kept) // PAGE))
    page = min(max(choice.page, 1), pages)
    return GroupPage(entries=kept[(page - 1) * PAGE: page * PAGE], total=len(kept), page=page, pages=pages,
                     kinds=sorted({entry.kind for entry in entries} - {""}),
                     outcomes=sorted({entry.outcome for entry in entries}))


def _fits(entry: GroupEntry, choice: Choice) -> bool:
    return (choice.outcome in ("", entry.outcome)
            and choice.kind in ("", entry.kind)
            and choice.task.casefold() in entry.task.casefold()
            and (choice.first is None or entry.step >= choice.first)
            and (choice.last is None or entry.step <= choice.last)
            and not (choice.mixed and entry.spread == 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One evaluation."""

    label: str
    step: int
    temperature: float
    version: str
    success: float
    low: float
    high: float
    by_task: dict[str, float]

    @property
    def title(self) -> str:
        """Returns the title: `step 20 T=0.4`, `after RL T=1`."""
        name = f"step {self.step}" if on_curve(self.label) else TITLES.get(self.label, self.label)
        return f"{name} T={self.temperature:g}"

    @property
    def file(self) -> str:
        """Returns the name of the archive file with its episodes."""
        return file_name(self.step, evaluation_part(self.label, self.temperature)).removesuffix(".parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLine:
    """One task: its success in each evaluation, None if it was not played."""

    task: str
    kind: str
    cells: list[float | None]
    changes: int
    """How often its outcome changed along the learning curve, at the curve's last temperature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Tasks by evaluations of one split."""

    split: str
    splits: list[str]
    columns: list[Column]
    lines: list[TaskLine]
    kinds: list[str]
    groups: dict[tuple[str, str], GroupEntry] = field(default_factory=dict)
    """(file, task) -> group with the episodes."""


def matrix(evaluations: Sequence[dict[str, Any]], entries: Iterable[GroupEntry], *, split: str = "", kind: str = "",
           sort: str = "task", descending: bool = False) -> Matrix | None:
    """Returns the matrix of a split, by default the first; None before the first evaluation. `kind`: only tasks of this
    type. `sort`: task, kind, changes, or a column number."""
    splits = list(dict.fromkeys(row["split"] for row in evaluations))
    if not splits:
        return None
    split = split if split in splits else splits[0]
    rows = sorted((row for row in evaluations if row["split"] == split),
                  key=lambda row: (not on_curve(row["label"]), row["step"]))
    columns = [Column(label=row["label"], step=row["step"], temperature=row["temperature"], version=row["version"],
                      success=row["success_rate"], low=row["success_low"], high=row["success_high"],
                      by_task=row["success_by_task"]) for row in rows]
    curve = [column for column in columns if on_curve(column.label)]
    curve = [column for column in curve if column.temperature == curve[-1].temperature]
    tasks = sorted({task for column in columns for task in column.by_task})
    entries = list(entries)
    kind_by_task = {entry.task: entry.kind for entry in entries}
    lines = [TaskLine(task=task, kind=kind_by_task.get(task) or kind_of(task),
                      cells=[column.by_task.get(task) for column in columns], changes=_changes(task, curve))
             for task in tasks]
    kinds = sorted({line.kind for line in lines} - {""})
    lines = [line for line in lines if kind in ("", line.kind)]
    if sort in map(str, range(len(columns))):
        lines.sort(key=lambda line: -1.0 if (cell := line.cells[int(sort)]) is None else cell, reverse=descending)
    elif sort in ("kind", "changes"):
        lines.sort(key=lambda line: getattr(line, sort), reverse=descending)
    elif descending:
        lines.reverse()
    files = {column.file for column in columns}
    return Matrix(split=split, splits=splits, columns=columns, lines=lines, kinds=kinds,
                  groups={(entry.file, entry.task): entry for entry in entries if entry.file in files})


def _changes(task: str, columns: Sequence[Column]) -> int:
    won = [success >= 0.5 for column in columns if (success := column.by_task.get(task)) is not None]
    return sum(a != b for a, b in pairwise(won))
