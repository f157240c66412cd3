"""Nothing outlives a parent that was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from processes import gone
from waiting import wait_until

from services.errors import DeadlineExceeded
from services.process.child_processes import ending_with_parent, wait_or_kill

PARENT = """
import subprocess, sys, time
from services.process.child_processes import ending_with_parent
child = subprocess.Popen(ending_with_parent(["sleep", "600"]), start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


def test_a_child_ends_with_a_parent_that_is_killed():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        assert child.is_running()
        wait_until(lambda: child.name() == "sleep")  # before that it would see for itself that its parent is gone
        parent.send_signal(signal.SIGKILL)
    wait_until(lambda: gone(child.pid))


def test_a_child_that_cannot_be_killed_is_named():
    """As one that waits for a disk which is gone: the kernel ends it only once that disk answers."""
    class Unkillable(subprocess.Popen):
        def kill(self) -> None:
            """Nothing."""

    with Unkillable(["sleep", "60"]) as child:
        with pytest.raises(DeadlineExceeded, match=rf"process {child.pid} has not ended 0.05 s after SIGKILL"):
            wait_or_kill(child, 0.05)
        child.send_signal(signal.SIGKILL)


def test_no_python_of_ours_runs_between_fork_and_exec():
    """It crashed now and then in a process with threads, in the middle of the restart of a Redis."""
    root = Path(__file__).parents[4]
    paths = [path for folder in ("services", "learner", "rollout", "envservice", "deploy")
             for path in (root / folder).rglob("*.py") if "preexec_fn=" in path.read_text()]
    assert paths == []


def test_the_command_gets_its_words_its_descriptors_and_the_usual_signals():
    read, write = os.pipe()
    script = "import os, sys; os.write(int(sys.argv[1]), sys.argv[2].encode())"
    shell = ["sh", "-c", "kill -PIPE $$; echo survived"]
    command = ending_with_parent([sys.executable, "-c", script, str(write), "a word"])
    with subprocess.Popen(command, pass_fds=[write]) as child:
        os.close(write)
        assert os.read(read, 100) == b"a word"
        assert child.wait(60) == 0
    os.close(read)
    assert subprocess.run(ending_with_parent(shell), stdout=subprocess.PIPE, check=False).returncode == -signal.SIGPIPE


FORKING = """
import os, signal, time
from functools import partial
from services.process.child_processes import end_with_parent
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.register_at_fork(after_in_child=partial(end_with_parent, signal.SIGKILL))
if not os.fork():
    print(os.getpid(), flush=True)
time.sleep(600)
"""


def test_a_fork_is_killed_with_its_parent():
    """Both ignore SIGTERM, as code of others may."""
    with subprocess.Popen([sys.executable, "-c", FORKING], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs([child], timeout=120)
    assert all(process.status() == psutil.STATUS_ZOMBIE for process in alive)
