"""A guard ends what a killed process leaves behind: real processes, a real SIGKILL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from waiting import wait_until

from services.process import guard
from services.process.guard import ProcessGuard, end_all, processes_in

WORKER = """
import os, subprocess, sys, time
from pathlib import Path
from services.process.guard import ProcessGuard
folder = Path(sys.argv[1])
guard = ProcessGuard(folder)
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", child], env=os.environ | {"TMPDIR": str(folder)}, start_new_session=True)
print("started", flush=True)
time.sleep(600)
"""


def test_a_killed_worker_leaves_neither_child_nor_folder(tmp_path: Path):
    """The child ignores SIGTERM and has a session of its own, and so gets SIGKILL."""
    folder = tmp_path / "engine"
    folder.mkdir()
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert worker.stdout.readline() == "started\n"
    wait_until(lambda: len(processes_in(str(folder))) == 1)
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait(60)
    wait_until(lambda: not folder.exists())
    assert processes_in(str(folder)) == []


def test_an_engine_ends_with_its_cluster_even_if_its_guard_goes_first(tmp_path: Path):
    """A driver that was killed and resumed at once ends the old cluster's processes, guards among them."""
    folder, beside = tmp_path / "cluster" / "engine", tmp_path / "cluster-of-another"
    folder.mkdir(parents=True)
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(folder)], stdout=subprocess.PIPE, text=True,
                              env=os.environ | {"TMPDIR": str(folder.parent)})
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                             env=os.environ | {"TMPDIR": str(beside)})
    try:
        assert worker.stdout.readline() == "started\n"
        wait_until(lambda: len(processes_in(str(folder.parent))) == 3)  # worker, guard, engine
        end_all(str(folder.parent), grace_s=1.0)
        assert processes_in(str(folder)) == []
        assert other.poll() is None
    finally:
        worker.wait(60)
        other.kill()
        other.wait(60)


def test_a_process_that_cannot_be_killed_is_named_and_left(tmp_path: Path, monkeypatch, capsys):
    """As one that waits for a driver of a broken device: waiting for its end would be waiting for ever."""
    monkeypatch.setattr(guard, "UNKILLABLE_S", 0.5)
    child = subprocess.Popen(["sleep", "600"], env=os.environ | {"TMPDIR": str(tmp_path)})
    try:
        wait_until(lambda: processes_in(str(tmp_path)) == [child.pid])
        with monkeypatch.context() as kernel:
            kernel.setattr(guard.os, "kill", lambda *_: None)
            end_all(str(tmp_path), grace_s=0.1)
        assert f"{child.pid}" in capsys.readouterr().err
        assert child.poll() is None
    finally:
        child.kill()
        child.wait(60)


def test_a_released_guard_touches_nothing(tmp_path: Path):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                             env=os.environ | {"TMPDIR": str(tmp_path)})
    try:
        ProcessGuard(tmp_path).release()
        wait_until(lambda: processes_in(str(tmp_path)) == [child.pid])
        assert tmp_path.exists()
    finally:
        child.kill()
        child.wait(60)
