"""The lines that a learner writes, and those that it drops when it continues a run, beside a folder that is away."""

import threading
from pathlib import Path

from learner.metrics.observer import Observer
from services.telemetry.metrics_file import append_row, read_rows


def test_rows_of_lost_steps_are_dropped_once_the_folder_is_back(tmp_path: Path):
    """A link to itself cannot be read, as a file of a shared folder that is away."""
    file, aside = tmp_path / "metrics.jsonl", tmp_path / "aside"
    for step in (1, 2, 3):
        append_row(file, {"step": step})
    file.rename(aside)
    file.symlink_to(file)
    threading.Timer(0.3, aside.rename, [file]).start()
    Observer(metrics=file, patience_s=60.0).restored(2, incarnation=1, found=True, durable=0.0)
    assert [row["step"] for row in read_rows(file)] == [1, 2]


def test_a_line_is_written_once_the_folder_is_back(tmp_path: Path):
    ledger = tmp_path / "ledger.jsonl"
    ledger.symlink_to(ledger)
    threading.Timer(0.3, ledger.unlink).start()
    observer = Observer(metrics=tmp_path / "metrics.jsonl", patience_s=60.0)
    observer.forgotten(4, next_group=9, incarnation=2)
    assert [(row["step"], row["reset_to_group"]) for row in read_rows(ledger)] == [(4, 9)]
