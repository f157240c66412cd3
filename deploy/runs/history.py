"""What a run left behind, read in one place: metrics.jsonl, evaluations.jsonl and the archive's parquet files.

A JSON-lines file grows while a run trains and views look at it several times a second, so only what was appended since
the last look is read. A line that a crash tore, or that is just being written, is left out until it is whole.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.runs.folder import RunFolder
from services.files import Damaged
from services.telemetry.metrics_file import (
    FILE_BYTES,
    MetricsRow,
    last_of_each_evaluation,
    last_of_each_step,
    whole_row,
)

if TYPE_CHECKING:
    import pyarrow as pa


class GrowingRows:
    """The rows of a JSON-lines file that others append to, and may replace. Threads may share it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._forget(file=0)

    def _forget(self, *, file: int) -> None:
        self._file, self._read_to = file, 0
        self._rows: list[MetricsRow] = []

    def rows(self) -> list[MetricsRow]:
        """All whole lines as of now, in order; [] without a file."""
        with self._lock:
            try:
                stream = self._path.open("rb")
            except FileNotFoundError:
                self._forget(file=0)
                return []
            with stream:
                if not self._path.is_file() or os.fstat(stream.fileno()).st_size > FILE_BYTES:
                    raise Damaged(f"{self._path} is no plain file of at most {FILE_BYTES >> 20} MiB", "restore it")
                size, file = _size_and_file(stream.fileno())
                if file != self._file or size < self._read_to:  # it was replaced
                    self._forget(file=file)
                if size > self._read_to:
                    stream.seek(self._read_to)
                    self._take(stream.read(size - self._read_to))
            return list(self._rows)

    def _take(self, appended: bytes) -> None:
        whole, newline, _ = appended.rpartition(b"\n")
        for line in whole.split(b"\n"):
            if (row := whole_row(line)) is not None:
                self._rows.append(row)
        self._read_to += len(whole) + len(newline)


def _size_and_file(descriptor: int) -> tuple[int, int]:
    stat = os.fstat(descriptor)
    return stat.st_size, stat.st_ino


class RunHistory:
    """A run's rows for every view: the console, `status`, the explorer, reports and records."""

    def __init__(self, folder: RunFolder) -> None:
        self._metrics, self._evaluations = GrowingRows(folder.metrics), GrowingRows(folder.evaluations)

    @property
    def metrics(self) -> list[MetricsRow]:
        """One row per learner step, in order: a step that a resumed run took again counts as it was taken last."""
        return last_of_each_step(self._metrics.rows())

    @property
    def evaluations(self) -> list[MetricsRow]:
        """One row per label and temperature, in order: an evaluation played again counts as it was played last."""
        return last_of_each_evaluation(self._evaluations.rows())


def unreadable(path: Path, error: Exception) -> str:
    """The warning about an archive file that cannot be read."""
    return f"episodes/{path.name} cannot be read and is left out: {str(error).splitlines()[0][:200]}"


def read_columns(files: Iterable[Path], columns: Sequence[str]) -> tuple[list[pa.Table], list[str]]:
    """These columns of the archive files that can be read, and a warning for each one that cannot."""
    import pyarrow.parquet as pq

    tables: list[pa.Table] = []
    warnings: list[str] = []
    for path in files:
        try:
            tables.append(pq.read_table(path, columns=list(columns)))
        except (OSError, ValueError) as error:  # pyarrow's errors are among these
            warnings.append(unreadable(path, error))
    return tables, warnings
