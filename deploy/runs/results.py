"""Reads the results of a run as Arrow tables. `table.to_pandas()` makes a DataFrame of one, if pandas is installed."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from deploy.runs.comparison import Verdict, verdicts
from deploy.runs.configs import light_config
from deploy.runs.folder import RunFolder
from deploy.runs.history import RunHistory, archive_files, unreadable
from deploy.runs.policies import find_run
from services.config.tree import Config
from services.errors import UserError
from services.files import Damaged
from services.parquet_files import ARCHIVE_ROWS, open_parquet, read_table

if TYPE_CHECKING:
    import pyarrow as pa

Outcome = Literal["trained", "evaluated", "dropped"]


class RunResults:
    """The results in a run's folder. Each call reads them again, so the run may still train. Raises UserError if there
    is no such run."""

    def __init__(self, path: Path | str) -> None:
        self._folder: RunFolder = find_run(Path(path))
        self._history = RunHistory(self._folder)

    def __repr__(self) -> str:
        return f"RunResults({str(self.path)!r})"

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self._folder.path

    @property
    def config(self) -> Config:
        """The config of the run's last start, without the defaults of its estimator's options."""
        return light_config(self._folder.config_file)

    @property
    def verdicts(self) -> list[Verdict]:
        """The gain of RL with its interval, one per temperature; [] while nothing can be compared."""
        return verdicts(self._history.evaluations)

    def metrics(self) -> pa.Table:
        """One row per learner step, with the columns of metrics.jsonl; docs/operate/run-folder.md explains them."""
        return _table(self._history.metrics)

    def evaluations(self) -> pa.Table:
        """One row per evaluation: label, step, temperature, success rate with its 95% interval, success by task.

        Columns that map tasks or types to numbers are Arrow maps.
        """
        return _table(self._history.evaluations)

    def episodes(self, *, step: int | None = None, outcome: Outcome = "trained",
                 columns: Sequence[str] | None = None) -> pa.Table:
        """One row per turn, with the columns of docs/tasks/parquet.md.

        `step`: the episodes of one learner step alone; a large run may not fit into memory otherwise. The table is
        empty if the step has none of this outcome. `columns`: read these alone. Raises UserError for a step without an
        archive and for a column that a file lacks, and Damaged for a file that cannot be read.
        """
        import pyarrow as pa

        tables: list[pa.Table] = []
        for path in self._files(step, outcome):
            try:
                with open_parquet(path, rows=ARCHIVE_ROWS) as file:
                    _check_columns(path, file.schema_arrow.names, columns)
                    tables.append(read_table(file, path, columns))
            except (OSError, ValueError) as error:  # pyarrow's errors are among these
                raise Damaged(unreadable(path, error), "restore it, or move it away") from None
        return pa.concat_tables(tables, promote_options="default") if tables else pa.table({})

    def _files(self, step: int | None, outcome: Outcome) -> list[Path]:
        files = archive_files(self.path)
        steps = {its for _, its, _ in files}
        if step is not None and step not in steps:
            raise no_archive(self.path, step, steps)
        return [path for path, its, part in files if _outcome(part) == outcome and step in (None, its)]


def no_archive(run: Path, step: int, steps: Collection[int]) -> UserError:
    """Returns the error about a learner step that is not among the `steps` of the archive."""
    there = f"steps {min(steps)} to {max(steps)}" if steps else "no step"
    return UserError(f"{run} has no archive of learner step {step}", f"its archive has {there}")


def _check_columns(path: Path, names: Sequence[str], columns: Sequence[str] | None) -> None:
    """Raises UserError for a name that is no column of the file: pyarrow's error reads as if the file were damaged."""
    if unknown := next((name for name in columns or () if name not in names), None):
        near = difflib.get_close_matches(unknown, names, n=1)
        raise UserError(f"episodes/{path.name} has no column {unknown!r}",
                        f"did you mean {near[0]!r}?" if near else f"use some of {', '.join(names)}")


def _outcome(part: str | None) -> Outcome:
    """Returns the outcome of a file's episodes, from the part of its name after the step."""
    if part is None:
        return "trained"
    return "dropped" if part.startswith("dropped-") else "evaluated"


def _table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    import pyarrow as pa

    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    return pa.table({name: _maps(values) if any(isinstance(value, dict) for value in values) else pa.array(values)
                     for name, values in columns.items()})


def _maps(values: Sequence[dict[str, float] | None]) -> pa.Array:
    import pyarrow as pa

    return pa.array([None if value is None else list(value.items()) for value in values],
                    pa.map_(pa.string(), pa.float64()))
