"""The complete loop of the self-test: `alfworld-1.5b`, three small steps and then two more."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from deploy.launch.planning.gpu_pool import smi_processes
from deploy.selftest.sizes import Size, used_mib
from deploy.training.child_runs import ChildFailed, run_child
from learner.selftest.table import Line
from services.telemetry.metrics_file import read_metrics

NAME = "selftest"
LATER = 5
"""`steps` of the resumed run, counted from its first step."""
LIMIT_S = 1800.0
LEFT_MIB = 256
"""Memory in MiB that may be in use after the run in addition to what was in use before it."""
END_S = 10.0
"""Seconds in which the GPU's driver frees the memory of processes that have ended."""


def loop_part(size: Size, model: Path, folder: Path, report: Callable[[str], object]) -> Iterator[Line]:
    """Yields the lines of the loop's part as they are measured. `folder`: where the run's folder goes."""
    before, used = set(smi_processes()), used_mib(size)
    report("three steps of alfworld-1.5b")
    started = time.monotonic()
    keys = (f"model.path={model}", f"runs_dir={folder}", f"name={NAME}", *size.loop)
    first = train(folder, ["--config", "alfworld-1.5b", *keys])
    yield Line(name="whole loop", passed=first == "" and _steps(folder) == 3,
               value=first or f"3 steps in {time.monotonic() - started:.0f} s")
    if not first:
        report("the run continues to five steps")
        second = train(folder, ["--resume", str(folder / NAME), f"steps={LATER}"])
        done = _steps(folder)
        yield Line(name="continues after its end", value=second or f"{done} steps",
                   passed=second == "" and done == LATER)
        yield by_ipc(size, folder / NAME / "log.jsonl")
    yield _left(size, before, used)


def by_ipc(size: Size, log: Path) -> Line:
    """Returns the line on how often the run's learner sent its weights from GPU to GPU. A round that fails does not end
    a run: the workers take that version from host memory."""
    events = Counter(json.loads(line)["event"] for line in log.read_text(encoding="utf-8").splitlines())
    sent, failed = events["transferred"], events["transfer failed"]
    return Line(name="versions by CUDA IPC in a run", value=f"{sent} sent, {failed} failed", aim="some, none failed",
                passed=None if size.device == "cpu" else sent > 0 and not failed)


def _left(size: Size, before: set[int], used: float) -> Line:
    """Returns the line on processes and memory that are left. In a container nvidia-smi may list no process."""
    deadline = time.monotonic() + END_S
    while True:
        left, grown = set(smi_processes()) - before, used_mib(size) - used
        gone = not left and grown < LEFT_MIB
        if gone or time.monotonic() > deadline:
            return Line(name="no GPU process left", value=f"{len(left)} left, {grown:+,.0f} MiB in use", passed=gone)
        time.sleep(0.5)


def train(folder: Path, arguments: list[str]) -> str:
    """Runs `gagpo train`. Returns "" if it succeeded, else the last line that it printed."""
    try:
        run_child("gagpo train", ["train", *arguments], log=folder / "train.log", deadline_s=LIMIT_S)
    except ChildFailed as error:
        return error.tail[-1] if error.tail else str(error)
    return ""


def _steps(folder: Path) -> int:
    return max(row["step"] for row in read_metrics(folder / NAME / "metrics.jsonl"))
