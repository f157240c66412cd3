"""Nothing outlives a parent that was killed."""

import signal
import subprocess
import sys

import psutil

PARENT = """
import subprocess, sys, time
from services.process.child_processes import end_with_parent
child = subprocess.Popen(["sleep", "60"], preexec_fn=end_with_parent(), start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_child_ends_with_a_parent_that_is_killed():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        assert child.is_running()
        parent.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs([child], timeout=10)
    assert all(process.status() == psutil.STATUS_ZOMBIE for process in alive)
