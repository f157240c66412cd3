"""The pool of an experiment ends with its block, whatever its workers do."""

import signal
import time
from pathlib import Path

import pytest
from waiting import wait_until

from deploy.experiment.pool import worker_pool


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
