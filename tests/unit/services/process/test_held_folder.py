"""A folder goes with its owner, with its guard, or with the next owner: real processes, a real SIGKILL."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from waiting import wait_until

from services.process.guard import processes_in
from services.process.held_folder import HeldFolder, sweep

OWNER = """
import os, subprocess, sys, time
from pathlib import Path
from services.process.held_folder import HeldFolder
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
    found: list[str] = []
    sweep("gagpo-x-", tmp_path, lambda folder: found.append(folder.name))
    assert found == ["gagpo-x-ours"]


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
