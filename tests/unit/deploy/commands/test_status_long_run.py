"""`gagpo status` about a run of weeks: thousands of evaluations, and files of 100 MB."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy import cli
from deploy.commands.status import read_status, summary
from deploy.runs.configs import load_config
from deploy.runs.folder import RunFolder
from deploy.runs.history import RunHistory
from services.config.file import dump_config
from services.telemetry.metrics_file import append_row


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    path = tmp_path / "runs/a"
    path.mkdir(parents=True)
    dump_config(load_config("alfworld-tiny", ()), path / "config.yaml")
    (path / "run.json").write_text("{}")
    return RunFolder(path)


def evaluated(folder: RunFolder, step: int, success: float = 0.25, **changes: object) -> None:
    append_row(folder.evaluations, {
        "label": f"step-{step:06d}", "step": step, "split": "valid", "temperature": 1.0, "success_rate": success,
        "success_low": 0.0, "success_high": 1.0, "tasks": 8, **changes})


@contextmanager
def watched(folder: RunFolder) -> Iterator[subprocess.Popen[str]]:
    """Provides `gagpo status --watch`, and ends it as Ctrl-C does."""
    command = [sys.executable, "-m", "deploy.cli", "status", str(folder.path), "--watch", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        yield process
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[1] == ""


def test_of_a_long_curve_the_first_the_best_and_the_last_evaluations_are_shown(folder: RunFolder):
    """Success on other games or at another temperature is another measure."""
    evaluated(folder, 10, 0.125, temperature=0.4)
    for step in range(10, 130, 10):
        evaluated(folder, step, 0.875 if step == 40 else 0.25)
    for label in ("panel-cold", "panel-trained"):
        evaluated(folder, 120, 0.5, label=label)
    lines = summary(read_status(folder, RunHistory(folder)))
    shown = [line.partition(" [")[0].strip() for line in lines if " T=" in line and "verdict" not in line]
    assert shown == [
        "evaluation at step 10, T=0.4: 12.5%", "evaluation at step 10, T=1: 25.0%", "evaluation at step 40, T=1: 87.5%",
        *(f"evaluation at step {step}, T=1: 25.0%" for step in (80, 90, 100, 110, 120)),
        "held-out games, before RL, T=1: 50.0%", "held-out games, after RL, T=1: 50.0%"]
    assert f"  shown: the first, the best and the last 5 of the curve; 5 more: gagpo explore {folder.path}" in lines


def test_a_short_curve_is_shown_whole(folder: RunFolder):
    for step in range(10, 70, 10):
        evaluated(folder, step)
    assert sum("T=1: 25.0%" in line for line in summary(read_status(folder, RunHistory(folder)))) == 6
    assert "more: gagpo explore" not in "".join(summary(read_status(folder, RunHistory(folder))))


def test_programs_get_all_evaluations(folder: RunFolder, capsys: pytest.CaptureFixture[str]):
    for step in range(10, 130, 10):
        evaluated(folder, step)
    assert cli.main(["status", str(folder.path), "--json"]) == 0
    assert [one["label"] for one in json.loads(capsys.readouterr().out)["evaluations"]] == [
        f"step-{step:06d}" for step in range(10, 130, 10)]


def test_a_watch_reads_what_is_new(folder: RunFolder):
    for file in (folder.metrics, folder.evaluations, folder.ledger):
        file.write_text("".join(json.dumps({"step": step, "filler": "x" * 1000}) + "\n" for step in range(1000)))
    read: list[int] = []
    with watched(folder) as process:
        assert process.stdout is not None
        for _ in range(2):
            process.stdout.readline()
            lines = Path(f"/proc/{process.pid}/io").read_text().splitlines()
            read.append(int(lines[0].removeprefix("rchar: ")))
    assert read[1] - read[0] < folder.metrics.stat().st_size / 10
