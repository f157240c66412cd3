"""The lines that a learner writes, and those that it drops when it continues a run, beside a folder that is away."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from learner.metrics import observer as observer_file
from learner.metrics.observer import Observer
from learner.trainer import StepReport
from services.records import Manifest, Version
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


def test_the_seconds_of_a_step_are_its_wall_time_from_row_to_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The first step waits 3 s, trains 5, waits 2 for the evaluation and publishes 1; its checkpoint takes 4 s of the
    second step, which then takes as long. Nobody times the training here."""
    now = [100.0]
    monkeypatch.setattr(observer_file.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(observer_file, "metrics_row", lambda _, manifest, __, measured, seconds: {
        "step": manifest.step, **measured, **{f"seconds/{phase}": value for phase, value in seconds.items()}})
    monkeypatch.setattr(observer_file, "check_metrics", lambda _: None)
    monkeypatch.setattr(observer_file, "step_taken", lambda *_: None)
    observer = Observer(metrics=tmp_path / "metrics.jsonl")

    def after(seconds: float, moment: Callable[..., object], *arguments: object, **options: object) -> None:
        now[0] += seconds
        moment(*arguments, **options)

    for step in (1, 2):
        report = StepReport(metrics={}, credits=[], logprobs=[], utilization=None)
        after(4.0 * (step - 1), observer.waiting)
        after(3.0, observer.training, Manifest(step=step, incarnation=1, groups=[], drops=[]), ())
        after(5.0, observer.trained, report, replayed=False)
        after(2.0, observer.publishing)
        after(1.0, observer.published, Version(incarnation=1, step=step))
    rows = read_rows(tmp_path / "metrics.jsonl")
    assert [[row[key] for key in ("step_seconds", "seconds/wait", "seconds/evaluation", "seconds/publish",
                                  "seconds/checkpoint")] for row in rows] == [
        [11.0, 3.0, 2.0, 1.0, 0.0], [15.0, 3.0, 2.0, 1.0, 4.0]]
