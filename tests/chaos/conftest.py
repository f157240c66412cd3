"""Runs a whole `gagpo train` in its own processes, watched from outside, so that any process can be killed."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from services.telemetry.metrics_file import read_rows

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "tests" / "toys")]
POLL_S = 0.1
START_S = 600.0
"""Longest time in seconds for cold start, Ray and vLLM on two busy cores."""
GONE_S = 60.0


class Run:
    """One `gagpo train`; `started` are all processes below it that were ever seen."""

    def __init__(self, folder: Path, *arguments: str, log: Path, temporary: Path | None) -> None:
        self.folder = folder
        self.log = log
        self.started: set[psutil.Process] = set()
        environment = {k: v for k, v in os.environ.items() if k not in ("ALFWORLD_DATA", "RAY_ADDRESS")}
        environment |= {"TMPDIR": str(temporary)} if temporary else {}
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "deploy.cli", "train", *arguments], stdout=out, stderr=out,
                stdin=subprocess.DEVNULL, start_new_session=True, env=environment)
        self._watch = threading.Thread(target=self._see, daemon=True)
        self._watch.start()

    def _see(self) -> None:
        root = psutil.Process(self.process.pid)
        while self.process.poll() is None:
            try:
                self.started.update(root.children(recursive=True))
            except psutil.NoSuchProcess:
                return
            time.sleep(POLL_S)

    @property
    def steps(self) -> list[int]:
        """Returns the number of learner steps in metrics.jsonl."""
        return [row["step"] for row in read_rows(self.folder / "metrics.jsonl")]

    def wait_for(self, what: str, happened: Callable[[], bool], seconds: float = START_S,
                 seen: Callable[[], object] = lambda: "") -> None:
        """Waits for a condition. Fails with the end of the log, and `seen`, if the run ends first or takes too long."""
        deadline = time.monotonic() + seconds
        while not happened():
            assert self.process.poll() is None, f"it ended before {what}:\n{self.tail()}"
            assert time.monotonic() < deadline, f"no {what} in {seconds:.0f} s: {seen()}\n{self.tail()}"
            time.sleep(POLL_S / 4)

    @property
    def said(self) -> str:
        """Returns the run's log so far."""
        return self.log.read_text(errors="replace")

    def titled(self, title: str) -> list[psutil.Process]:
        """Returns the processes of this run whose titles contain `title`."""
        return [process for process in psutil.Process(self.process.pid).children(recursive=True)
                if title in _title(process)]

    def find(self, title: str) -> psutil.Process:
        """Returns the one process of this run whose title contains `title`, as soon as there is one."""
        found: list[psutil.Process] = []

        def one() -> bool:
            found[:] = self.titled(title)
            return len(found) == 1

        self.wait_for(f"a single {title}", one, seen=lambda: [f"{process.pid} {_title(process)}" for process in (
            found or psutil.Process(self.process.pid).children(recursive=True))])
        return found[0]

    def ctrl_c(self) -> None:
        """Sends SIGINT to every process in the foreground, as a terminal does."""
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self, seconds: float = START_S) -> int:
        """Waits for the run's end. Returns its exit status."""
        status = self.process.wait(seconds)
        self._watch.join(60)
        return status

    def survivors(self) -> list[str]:
        """Returns the processes that still exist some seconds after the run has ended."""
        _, alive = psutil.wait_procs([p for p in self.started if not _gone(p)], GONE_S)
        return [_title(process) for process in alive if not _gone(process)]

    def tail(self) -> str:
        """Returns the end of the run's output."""
        return "\n".join(self.said.splitlines()[-25:])

    def clean_up(self) -> None:
        """Ends all processes of the run, in every case. Any of them may end by itself meanwhile."""
        left = set(self.started)
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(self.process.pid)
            if self.process.poll() is None:  # else another process may have its number by now
                left |= {root, *root.children(recursive=True)}
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs([process for process in left if not _gone(process)], GONE_S)


def _gone(process: psutil.Process) -> bool:
    """Whether a process has ended. A zombie counts as ended: only its parent is missing to reap it."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return f"process {process.pid}"


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory):
    """Provides `train(folder, arguments...)`, which starts a run."""
    logs = tmp_path_factory.mktemp("logs")
    runs: list[Run] = []

    def start(folder: Path, *arguments: str, temporary: Path | None = None) -> Run:
        runs.append(Run(folder, *arguments, log=logs / f"{len(runs)}.log", temporary=temporary))
        return runs[-1]

    yield start
    for run in runs:
        run.clean_up()
