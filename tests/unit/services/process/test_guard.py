"""A guard ends what a killed process leaves behind: real processes, a real SIGKILL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from waiting import wait_until

from services.process import guard
from services.process.guard import HeldFolder, ProcessGuard, end_all, processes_in, sweep

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
    folder, elsewhere = tmp_path / "cluster" / "engine", tmp_path / "cluster-of-another"
    folder.mkdir(parents=True)
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(folder)], stdout=subprocess.PIPE, text=True,
                              env=os.environ | {"TMPDIR": str(folder.parent)})
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                             env=os.environ | {"TMPDIR": str(elsewhere)})
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


OWNER = """
import os, subprocess, sys, time
from pathlib import Path
from services.process.guard import HeldFolder
held = HeldFolder("gagpo-x-", Path(sys.argv[1]))
left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                        env=os.environ | {"TMPDIR": str(held.path)}, start_new_session=True)
print(held.path, left.pid, flush=True)
time.sleep(600)
"""


def test_a_killed_owner_leaves_its_folder_to_the_next_one_with_the_processes_in_it(tmp_path: Path):
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    folder, left = owner.stdout.readline().split()
    sweep("gagpo-x-", tmp_path)
    wait_until(lambda: processes_in(folder) == [int(left)])  # a process that has just begun shows no environment yet
    owner.kill()
    owner.wait()
    held = HeldFolder("gagpo-x-", tmp_path)
    assert list(tmp_path.iterdir()) == [held.path]
    assert processes_in(folder) == []
    held.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_held_as_long_as_one_process_has_its_lock(tmp_path: Path):
    held = HeldFolder("gagpo-x-", tmp_path)
    assert held.path.stat().st_mode & 0o777 == 0o700
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(held.lock,))
    os.close(held.lock)  # as the end of the owner does
    sweep("gagpo-x-", tmp_path)
    assert held.path.exists()
    child.communicate()
    sweep("gagpo-x-", tmp_path)
    assert not held.path.exists()


def test_leavings_of_an_owner_are_told_for_folders_of_ours_alone(tmp_path: Path):
    for name in ("gagpo-x-ours", "gagpo-x-theirs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "held").touch()
    if os.getuid() == 0:
        os.chown(tmp_path / "gagpo-x-theirs", 1, 1)
    else:
        (tmp_path / "gagpo-x-theirs" / "held").unlink()  # only root can make another user's folder
    removed: list[str] = []
    sweep("gagpo-x-", tmp_path, lambda folder: removed.append(folder.name))
    assert removed == ["gagpo-x-ours"]


def test_other_folders_are_spared(tmp_path: Path):
    for name in ("gagpo-x-strange", "gagpo-y-dead"):
        (tmp_path / name).mkdir()
    (tmp_path / "gagpo-y-dead" / "held").touch()
    sweep("gagpo-x-", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"gagpo-x-strange", "gagpo-y-dead"}


@pytest.mark.attack
def test_a_pipe_in_place_of_a_lock_keeps_nobody_waiting(tmp_path: Path):
    """Any user can make it in a common /tmp, under our prefix."""
    (tmp_path / "gagpo-x-strange").mkdir()
    os.mkfifo(tmp_path / "gagpo-x-strange" / "held")
    thread = threading.Thread(target=sweep, args=("gagpo-x-", tmp_path), daemon=True)
    thread.start()
    thread.join(10.0)
    assert not thread.is_alive()
