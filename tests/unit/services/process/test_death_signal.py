"""vLLM's EngineCore, a fork of the process that serves the worker, ends with it."""

import signal
import subprocess
import sys

import psutil

FORKING = """
import os, signal, time
from functools import partial
from services.process.death_signal import end_with_parent
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
