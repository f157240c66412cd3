"""How far each state key would pool the turns that a run trained on, from its archive: the paper's table 5 by key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.report.advantages import trained_files
from deploy.runs.history import read_columns

if TYPE_CHECKING:
    import pyarrow as pa

FILES = 5
"""Number of a run's last learner steps that are read."""
HEAD = ("arm", "key", "alone", "2 to 4", "5 to 8", "above 8", "mean size")
OWN = "the run's own"
_COLUMNS: Mapping[str, Sequence[str]] = {
    OWN: ("state_key",), "observation": ("observation",), "normalized": ("observation",),
    "observation+admissible": ("observation", "choices"), "environment": ("state",), "prompt": ("prompt_ids",)}


def rows(runs: Mapping[str, Sequence[Path]]) -> list[list[str]]:
    """Returns a table row per arm and key, over the last FILES learner steps of all runs of the arm.

    A key that an archive cannot tell (no admissible actions, no state, a format before 4) has no row.
    """
    return [[arm, key, *_cells(sizes)] for arm, folders in runs.items()
            for key, columns in _COLUMNS.items() if (sizes := _sizes(folders, columns, _naming(key)))]


def _naming(key: str) -> Callable[[Hashable], Hashable]:
    from learner.credit.text_pools import fold

    return (lambda text: fold(str(text))) if key == "normalized" else lambda state: state


def _sizes(folders: Sequence[Path], columns: Sequence[str], name: Callable[[Hashable], Hashable]) -> list[int]:
    """Returns the number of turns in each state of each group; none if any turn lacks one of the columns."""
    found: list[int] = []
    for folder in folders:
        for table in read_columns(trained_files(folder)[-FILES:], ["group", *columns])[0]:
            states = _states(table, columns)
            if states is None:
                return []
            named = {state: name(state) for state in set(states)}
            groups = table.column("group").to_pylist()
            found += Counter((group, named[state]) for group, state in zip(groups, states, strict=True)).values()
    return found


def _states(table: pa.Table, columns: Sequence[str]) -> list[Hashable] | None:
    """Returns what stands for the state of each turn, or None if some turn does not tell it."""
    if not set(columns) <= set(table.column_names):
        return None
    rows = [[str(value) if isinstance(value, list) else value for value in table.column(name).to_pylist()]
            for name in columns]
    if any(value in (None, "") for row in rows for value in row):
        return None
    return list(rows[0]) if len(rows) == 1 else list(zip(*rows, strict=True))


def _cells(sizes: Sequence[int]) -> list[str]:
    steps = sum(sizes)
    shares = [sum(size for size in sizes if low <= size <= high) / steps
              for low, high in ((1, 1), (2, 4), (5, 8), (9, steps))]
    return [*(f"{share:.1%}" for share in shares), f"{steps / len(sizes):.1f}"]
