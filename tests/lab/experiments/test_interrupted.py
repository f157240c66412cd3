"""Experiments that a signal ends: in processes of their own, as handlers of signals belong to a whole process."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from waiting import wait_until

POOL = """
import os, sys, time
from concurrent.futures import as_completed
from lab.experiments.pool import worker_pool
from services.process.signals import signals_unwind

def work(_):
    os.write(1, b"working\\n")
    time.sleep(600)

with signals_unwind(), worker_pool(2) as pool:
    list(as_completed([pool.submit(work, number) for number in range(8)]))
"""
RUNS = """
import sys
from pathlib import Path
from lab.experiments.credit import runs
from lab.experiments.credit.design import runs as planned
from lab.experiments.credit.progress import RunsProgress
from deploy.runs.configs import load_config
from deploy.training.child_runs import Child
from services.process.signals import signals_unwind

class Serving(Child):
    def __init__(self, name, arguments, *, log, leave_s, secrets):
        super().__init__(name, ["serve-env", "--port", "0"], log=log, leave_s=leave_s)

runs.Child = Serving
out, config = Path(sys.argv[1]), load_config("credit-experiment", [f"runs_dir={sys.argv[1]}/runs"])
(out / "runs" / config.name).mkdir(parents=True)
with signals_unwind(), RunsProgress(2) as progress:
    common = {"cold_start": "c", "cold_evaluations": [], "panels": {}}
    runs.Runner(config=config, out=out, common=common, progress=progress, parallel=2).make(planned(["gagpo"], range(2)))
"""


@contextmanager
def started(*command: str) -> Iterator[subprocess.Popen[str]]:
    """Starts an experiment; afterwards no process of it is left."""
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as one:
        try:
            yield one
        finally:
            for process in psutil.Process(one.pid).children(recursive=True) if one.poll() is None else ():
                process.kill()
            one.kill()


def ends(one: subprocess.Popen[str], number: signal.Signals) -> str:
    """Sends a signal. Returns stderr. All processes of the experiment end, and it ends with 128 + number."""
    family = psutil.Process(one.pid).children(recursive=True)
    assert family
    one.send_signal(number)
    _, said = one.communicate(timeout=60)
    assert one.returncode in (128 + number, -number)
    assert psutil.wait_procs(family, timeout=10)[1] == []
    return said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_ends_the_workers_of_a_pool_and_drops_the_work_that_waits(number: signal.Signals):
    with started("-c", POOL) as one:
        assert [one.stdout.readline() for _ in range(2)] == ["working\n"] * 2
        ends(one, number)


def test_an_experiment_of_runs_in_a_pool_ends_with_143_and_says_how_to_go_on(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)  # generated games are quick to list
    with started("-m", "lab.experiments", "loglinear", "--out", str(tmp_path)) as one:
        wait_until(lambda: bool(psutil.Process(one.pid).children()))
        said = ends(one, signal.SIGTERM)
    assert said.splitlines()[-1] == "to continue: the same command"
    assert "Traceback" not in said


def test_an_experiment_ends_its_runs_by_the_signal_that_ends_it_and_says_how_to_go_on(tmp_path: Path):
    """The runs are environment servers here, which end as `gagpo train` does and start in a second."""
    logs = [tmp_path / f"runs/credit-experiment/gagpo-seed{seed}.log" for seed in range(2)]
    with started("-c", RUNS, str(tmp_path)) as one:
        wait_until(lambda: all(log.exists() and "serving" in log.read_text() for log in logs))
        said = ends(one, signal.SIGTERM)
    assert said.splitlines()[-1] == "to continue: the same command"
    assert all("drained" in log.read_text() for log in logs)
