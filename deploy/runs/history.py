"""Reads the results of a run in one place: metrics.jsonl, evaluations.jsonl and the archive's parquet files.

A JSON-lines file grows while a run trains, and views read it several times a second. So each read continues where the
last one ended. A line that is cut short, by a crash or because it is being written, is left out until it is complete.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from deploy.runs.folder import RunFolder
from services.errors import first_line
from services.files import Damaged, open_plain
from services.outages import LastValue
from services.parquet_files import ARCHIVE_ROWS, open_parquet, read_table
from services.telemetry.metrics_file import (
    FILE_BYTES,
    MetricsRow,
    cut_short,
    last_of_each_evaluation,
    last_of_each_step,
    parse_row,
)

if TYPE_CHECKING:
    import pyarrow as pa


class GrowingRows:
    """The rows of a JSON-lines file that other processes append to or replace. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._forget(file=0)

    def _forget(self, *, file: int) -> None:
        self._file, self._read_to = file, 0
        self._rows: list[MetricsRow] = []
        self._lines = self._lost = 0
        self._begun = b""  # the unfinished line after the last newline

    def rows(self) -> list[MetricsRow]:
        """Returns the rows of all complete lines, in order. If the file is gone, its last rows."""
        with self._lock:
            self._read()
            return list(self._rows)

    def damage(self) -> str:
        """Returns a sentence on the damaged lines, or "" if there are none.

        A line that a crash cut short does not count: its end is missing, and the writer began a new line after it.
        """
        with self._lock:
            self._read()
            lost = self._lost + (parse_row(self._begun) is None and not cut_short(self._begun))
            lines = self._lines + bool(self._begun)
        return f"{lost} of {lines} lines of {self.path.name} are damaged and left out" if lost else ""

    def _read(self) -> None:
        try:
            with open_plain(self.path) as stream:
                self._read_new(stream)
        except FileNotFoundError:
            self._file = 0  # a new file is read from its beginning

    def _read_new(self, stream: BinaryIO) -> None:
        size, file = _size_and_file(stream.fileno())
        if size > FILE_BYTES:
            raise Damaged(f"{self.path} is larger than {FILE_BYTES >> 20} MiB", "restore it")
        if file != self._file or size < self._read_to:  # it was replaced
            self._forget(file=file)
        if size > self._read_to:
            stream.seek(self._read_to)
            self._take(stream.read(size - self._read_to))

    def _take(self, appended: bytes) -> None:
        *lines, self._begun = appended.split(b"\n")
        for line in lines:
            if (row := parse_row(line)) is not None:
                self._rows.append(row)
            else:
                self._lost += not cut_short(line)
        self._lines += len(lines)
        self._read_to += len(appended) - len(self._begun)


def _size_and_file(descriptor: int) -> tuple[int, int]:
    stat = os.fstat(descriptor)
    return stat.st_size, stat.st_ino


class RunHistory:
    """The rows of a run, for the console, `status`, the explorer, reports and records.

    `outage_s`: seconds for which the last rows hold while the folder cannot be read (services/outages.py).
    """

    def __init__(self, folder: RunFolder, *, outage_s: float = 0.0) -> None:
        self._files = [GrowingRows(path) for path in (folder.metrics, folder.evaluations, folder.ledger)]
        self._metrics, self._evaluations = (LastValue(file.rows, seconds=outage_s) for file in self._files[:2])

    @property
    def metrics(self) -> list[MetricsRow]:
        """Returns one row per learner step, in order. If a resumed run repeated a step, its last row counts."""
        return last_of_each_step(self._metrics.now())

    @property
    def evaluations(self) -> list[MetricsRow]:
        """Returns one row per label and temperature, in order. If an evaluation was repeated, its last row counts."""
        return last_of_each_evaluation(self._evaluations.now())

    @property
    def damage(self) -> list[str]:
        """Returns a sentence for each file, the ledger too, that has damaged lines or cannot be read."""
        return [text for file in self._files if (text := _damage(file))]


def _damage(file: GrowingRows) -> str:
    try:
        return file.damage()
    except OSError as error:
        return f"{file.path.name} cannot be read: {error.strerror or error}"
    except Damaged as error:
        return str(error)


def unreadable(path: Path, error: Exception) -> str:
    """Returns the warning about an archive file that cannot be read."""
    return f"episodes/{path.name} cannot be read and is left out: {first_line(error)[:200]}"


def archive_files(run: Path) -> list[tuple[Path, int, str | None]]:
    """Returns the archive files of a run in order: path, step, and the part of the name after the step. That is
    `LABEL-T<t>` for an evaluation, `dropped-...` for a dropped group, and None for groups that were trained on."""
    from services.store.archive import FILE_NAME  # loads numpy, which the images of environment servers lack

    files = [(path, FILE_NAME.fullmatch(path.name)) for path in sorted((run / "episodes").glob("step-*.parquet"))]
    return [(path, int(match[1]), match[2]) for path, match in files if match]


def read_columns(files: Iterable[Path], columns: Sequence[str]) -> tuple[list[pa.Table], list[str]]:
    """Returns these columns of the archive files that can be read, and a warning for each other file."""
    tables: list[pa.Table] = []
    warnings: list[str] = []
    for path in files:
        try:
            with open_parquet(path, rows=ARCHIVE_ROWS) as file:
                tables.append(read_table(file, path, columns))
        except (OSError, ValueError, Damaged) as error:  # pyarrow's errors are among these
            warnings.append(unreadable(path, error))
    return tables, warnings
