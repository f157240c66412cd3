"""The long lists: groups, sorted and filtered, and evaluations by task. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from deploy.explorer.index import GroupEntry, kind_of
from services.store.archive import evaluation_part, file_name
from services.telemetry.evaluation_labels import TITLES, on_curve

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The filters and order of the list of groups. They are the query of the page, so a link shows the same list."""

    sort: str = "step"
    descending: bool = False
    outcome: str = ""
    kind: str = ""
    task: str = ""
    """Text that the task id must contain."""
    first: int | None = None
    last: int | None = None
    mixed: bool = False
    """Whether only groups whose episodes have different returns are shown."""
    page: int = 1


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
    kept.sort(key=ORDERS[choice.sort], reverse=choice.descending)
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
    """Returns the matrix, or None if no such task was evaluated. `sort`: task, kind, changes, or a column number."""
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
    known = {entry.task: entry.kind for entry in entries}
    lines = [TaskLine(task=task, kind=known.get(task) or kind_of(task),
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
