"""Reads parquet files that others may have written, up to limits of rows and memory.

A file of some kilobytes can hold any number of equal rows, so the size of a file limits nothing. Arrow opens the file
itself: its threads may outlive the interpreter, and a thread that then closes a Python file aborts the process.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from services.files import Damaged, open_plain

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import parquet

TABLE_BYTES = 4 << 30
"""The most that the rows of a file may take in memory."""
ARCHIVE_ROWS = 1 << 20
"""The most rows that one file of an archive may have: a row is a turn, and a file is a step."""
BATCH_ROWS = 1024
"""Rows that are decoded at once, or fewer where they may be large."""


@contextmanager
def open_parquet(path: Path, *, rows: int | None = None) -> Generator[parquet.ParquetFile]:
    """Opens a plain parquet file of at most `rows` rows.

    Raises Damaged for a device, a pipe or a file with more rows, and OSError or ValueError (pyarrow's errors are among
    these) for one that cannot be read.
    """
    import pyarrow as pa
    from pyarrow import parquet

    with open_plain(path) as plain, pa.OSFile(f"/dev/fd/{plain.fileno()}") as own, parquet.ParquetFile(own) as file:
        if rows is not None and file.metadata.num_rows > rows:
            raise Damaged(f"{path} has {file.metadata.num_rows:,} rows, and at most {rows:,} are read",
                          "restore it, or move it away")
        yield file


def read_table(file: parquet.ParquetFile, path: Path, columns: Sequence[str] | None = None,
               row_groups: Sequence[int] | None = None) -> pa.Table:
    """Returns the columns, by default all, of the row groups, by default all. `path`: its name in errors.

    Raises ValueError for a column that the file lacks, and Damaged if the rows take more than TABLE_BYTES.
    """
    import pyarrow as pa

    if missing := next((name for name in columns or () if name not in file.schema_arrow.names), None):
        raise ValueError(f"it has no column {missing}")
    batches = list(_bounded(file, path, columns, range(file.num_row_groups) if row_groups is None else row_groups,
                            limit=TABLE_BYTES))
    table = pa.Table.from_batches(batches) if batches else file.schema_arrow.empty_table()
    return table if columns is None else table.select(list(columns))


def read_rows(path: Path, *, limit: int) -> Iterator[dict[str, object]]:
    """Yields the rows of a file. Raises as open_parquet does, and Damaged once they have taken `limit` bytes."""
    with open_parquet(path) as file:
        for batch in _bounded(file, path, None, range(file.num_row_groups), limit=limit):
            yield from batch.to_pylist()


def _bounded(file: parquet.ParquetFile, path: Path, columns: Sequence[str] | None,
             groups: Sequence[int], *, limit: int) -> Iterator[pa.RecordBatch]:
    size = 0
    for group in groups:
        # All rows of a group may be the same large text, which the file holds once and a batch once per row.
        rows = max(1, min(BATCH_ROWS, limit // max(1, file.metadata.row_group(group).total_byte_size)))
        for batch in file.iter_batches(rows, row_groups=[group], columns=columns and list(columns), use_threads=False):
            size += batch.nbytes
            if size > limit:
                raise Damaged(f"the rows of {path} take more than {limit >> 20} MiB in memory",
                              "give a smaller file")
            yield batch
