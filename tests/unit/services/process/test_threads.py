"""Calls in one thread, which nobody has to wait for."""

import subprocess
import sys
import threading

import pytest

from services.process.threads import DaemonThread

HANGS = """
import threading
from services.process.threads import DaemonThread

begun = threading.Event()
with DaemonThread("hangs") as thread:
    thread.submit(lambda: (begun.set(), threading.Event().wait()))
    begun.wait()
print("left")
"""


def test_calls_run_in_their_order_in_one_thread_and_errors_reach_the_caller():
    with DaemonThread("calls") as thread:
        ran = [thread.submit(lambda number: (number, threading.current_thread().name), number) for number in range(3)]
        failed = thread.submit(int, "no number")
        assert [future.result(60) for future in ran] == [(number, "calls") for number in range(3)]
        with pytest.raises(ValueError, match="no number"):
            failed.result(60)


def test_a_cancelled_call_is_left_out():
    go_on, ran = threading.Event(), list[str]()
    with DaemonThread("calls") as thread:
        thread.submit(go_on.wait)
        left_out = thread.submit(ran.append, "cancelled")
        last = thread.submit(ran.append, "last")
        assert left_out.cancel()
        go_on.set()
        last.result(60)
    assert ran == ["last"]


def test_a_call_that_hangs_keeps_neither_its_block_nor_the_process():
    done = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "left\n"
