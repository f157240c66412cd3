"""One reader of what runs write: it reads what is new, and nothing that is broken stops it."""

import json
import threading
from pathlib import Path

import pytest

from deploy.runs.folder import RunFolder
from deploy.runs.history import GrowingRows, RunHistory
from services.telemetry.metrics_file import append_row, drop_rows


def bytes_read() -> int:
    """Returns the bytes that this thread has read from files so far, as the kernel counts them."""
    lines = Path(f"/proc/self/task/{threading.get_native_id()}/io").read_text().splitlines()
    return int(lines[0].removeprefix("rchar: "))


def test_a_file_that_grows_is_not_read_whole_again(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": step, "filler": "x" * 1000}) + "\n" for step in range(1000)))
    growing = GrowingRows(path)
    assert len(growing.rows()) == 1000
    before = bytes_read()
    for step in range(1000, 1010):
        append_row(path, {"step": step})
        assert growing.rows()[-1]["step"] == step
        assert len(growing.rows()) == step + 1
    assert bytes_read() - before < path.stat().st_size / 10


@pytest.mark.parametrize("cut", [1, 4, 12])
def test_a_line_that_is_being_written_counts_once_it_is_whole(tmp_path: Path, cut: int):
    path, line = tmp_path / "metrics.jsonl", b'{"step": 2}\n'
    path.write_bytes(b'{"step": 1}\n' + line[:-cut])
    growing = GrowingRows(path)
    assert [row["step"] for row in growing.rows()] == [1]
    with path.open("ab") as file:
        file.write(line[-cut:])
    assert [row["step"] for row in growing.rows()] == [1, 2]


def test_torn_lines_and_lines_without_an_object_do_not_affect_the_others(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": \n7\n\xff\xfe\n')
    append_row(path, {"step": 2})
    assert [row["step"] for row in GrowingRows(path).rows()] == [1, 2]


def test_damaged_lines_are_counted_as_the_file_grows(tmp_path: Path):
    """One that was cut short, or that is being written, is not damaged."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": \n{"st')
    growing = GrowingRows(path)
    assert growing.damage() == ""
    with path.open("ab") as file:
        file.write(b'ep": "two"}\n')
    assert growing.damage() == "1 of 3 lines of metrics.jsonl are damaged and left out"
    with path.open("ab") as file:
        file.write(b"\xff")
    for _ in range(2):
        assert growing.damage() == "2 of 4 lines of metrics.jsonl are damaged and left out"
    path.write_bytes(b'{"step": 1}\n')
    assert growing.damage() == ""


def test_a_file_that_was_replaced_is_read_again(tmp_path: Path):
    """As when a run goes on from a checkpoint and takes the steps after it again."""
    path = tmp_path / "metrics.jsonl"
    growing = GrowingRows(path)
    assert growing.rows() == []
    for step in (1, 2, 3):
        append_row(path, {"step": step})
    assert len(growing.rows()) == 3
    drop_rows(path, after_step=1)
    append_row(path, {"step": 2, "again": True})
    assert [row.get("again") for row in growing.rows()] == [None, True]


def test_a_step_taken_again_and_an_evaluation_played_again_count_as_they_were_last(tmp_path: Path):
    folder = RunFolder(tmp_path)
    for step, rate in ((1, 0.1), (2, 0.2), (1, 0.3)):
        append_row(folder.metrics, {"step": step, "success_rate": rate})
        append_row(folder.evaluations, {"label": f"step-{step}", "temperature": 1.0, "success_rate": rate})
    history = RunHistory(folder)
    assert [row["success_rate"] for row in history.metrics] == [0.3, 0.2]
    assert [row["success_rate"] for row in history.evaluations] == [0.3, 0.2]
