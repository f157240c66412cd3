"""A parquet file is read in one thread and within limits, whoever wrote it."""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from services import parquet_files
from services.files import Damaged
from services.parquet_files import open_parquet, read_table

LETTERS = pa.table({"name": ["a", "b", "c"], "number": [1, 2, 3]})


@pytest.fixture
def letters(tmp_path: Path) -> Path:
    """Three rows in two row groups."""
    parquet.write_table(LETTERS, tmp_path / "letters.parquet", row_group_size=2)
    return tmp_path / "letters.parquet"


def test_columns_come_in_the_order_asked_for_and_row_groups_alone(letters):
    with open_parquet(letters) as file:
        assert read_table(file, letters) == LETTERS
        assert read_table(file, letters, ["number", "name"]) == LETTERS.select(["number", "name"])
        assert read_table(file, letters, row_groups=[1]).to_pylist() == [{"name": "c", "number": 3}]
        assert read_table(file, letters, ["name"], row_groups=[]).schema == LETTERS.select(["name"]).schema
        with pytest.raises(ValueError, match="it has no column size"):
            read_table(file, letters, ["name", "size"])


def test_a_process_ends_well_right_after_reading(letters):
    """One in six aborted while Arrow's threads read a file of Python's: `gagpo audit` died after all its work."""
    script = f"""
from pathlib import Path
from services.parquet_files import open_parquet, read_table
for _ in range(6):
    with open_parquet(path := Path({str(letters)!r})) as file:
        read_table(file, path, ["name"])
"""
    readers = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(8)]
    assert [reader.wait(60) for reader in readers] == [0] * 8


def test_more_rows_than_asked_for_are_refused_before_they_are_read(letters):
    with (pytest.raises(Damaged, match=r"letters\.parquet has 3 rows, and at most 2 are read"),
          open_parquet(letters, rows=2)):
        pass


def test_a_group_of_one_large_text_many_times_is_never_expanded_at_once(tmp_path, monkeypatch):
    """64 equal texts of 1 MiB are one text in the file; each batch has as many rows as surely fit."""
    monkeypatch.setattr(parquet_files, "TABLE_BYTES", 4 << 20)
    path = tmp_path / "equal.parquet"
    parquet.write_table(pa.table({"text": ["x" * (1 << 20)] * 64}), path, compression="zstd",
                        dictionary_pagesize_limit=4 << 20)
    assert path.stat().st_size < 1 << 20
    with open_parquet(path) as file:
        assert file.metadata.row_group(0).total_byte_size < 2 << 20
        with pytest.raises(Damaged, match=r"the rows of .*equal\.parquet take more than 4 MiB in memory"):
            read_table(file, path)
