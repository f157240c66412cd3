"""The pool of an experiment ends with its block, whatever its workers do."""

import multiprocessing
import signal
import threading
import time
from concurrent.futures.process import _ExecutorManagerThread
from pathlib import Path

import pytest
from waiting import wait_until

from lab.experiments.pool import worker_pool


def work_deaf(begun: Path) -> None:
    """Does not hear SIGTERM, as a process that has just been forked."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    begun.touch()
    time.sleep(3600)


def test_workers_that_do_not_hear_sigterm_end_with_a_block_that_raises(tmp_path: Path):
    def interrupted() -> None:
        with worker_pool(2) as pool:
            for number in range(2):
                pool.submit(work_deaf, tmp_path / str(number))
            wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()


def test_the_executors_thread_ends_with_a_block_that_raises():
    """Python wakes it at the end of the process, through a pipe that it may be closing just then."""
    def interrupted() -> None:
        with worker_pool(2) as pool:
            pool.submit(time.sleep, 3600)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not any(isinstance(thread, _ExecutorManagerThread) for thread in threading.enumerate())


def test_a_signal_while_the_pool_starts_ends_the_block_as_at_any_other_time(monkeypatch: pytest.MonkeyPatch):
    """It comes between the start of the processes and that of the thread that looks after them."""

    def interrupted(_: _ExecutorManagerThread) -> None:
        raise SystemExit(143)

    monkeypatch.setattr(_ExecutorManagerThread, "start", interrupted)
    with pytest.raises(SystemExit), worker_pool(2) as pool:
        pool.submit(int)
    wait_until(lambda: multiprocessing.active_children() == [])
