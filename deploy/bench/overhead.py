"""What being watched costs: CPU seconds inside metrics, logs and archive, over those of all processes of a short run.

A real run on generated games, from the moment that its metrics are served: the cold start before it costs much CPU and
is watched little. Environment servers count with all their CPU and without their own counters, which are a part of it.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import urllib.request
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil

from deploy.bench.figures import Figure, Tell, silent
from deploy.runs.folder import targets_folder
from deploy.training.child_runs import Child

STEPS = 4
SETTINGS = (f"steps={STEPS}", "sft.minutes=0.3", "sft.demos_per_game=1", "learner.groups_per_step=6",
            "eval.every=0", "eval.panel=0", "rollout.slots=48")
PARTS = ("metrics", "logs", "archive")
DEADLINE_S = 1200.0
EVERY_S = 0.5
READ_S = 5.0


def run(tell: Tell = silent) -> list[Figure]:
    """Takes about two minutes. Raises ChildFailed with the run's last lines where it fails."""
    tell("a run of a few steps", 0, 1)
    with tempfile.TemporaryDirectory(prefix="gagpo-bench-") as folder:
        watched, total = _measure(Path(folder))
    figures = [Figure(name=f"CPU of {part}", value=watched[part], unit="s") for part in PARTS]
    share = 100 * sum(watched[part] for part in PARTS) / total
    return [*figures, Figure(name="CPU of the run", value=total, unit="s"),
            Figure(name="overhead", value=share, unit="%")]


def _measure(folder: Path) -> tuple[dict[str, float], float]:
    """(part -> CPU seconds, CPU seconds of all processes)."""
    child = Child("the run", ["train", "--config", "alfworld-tiny", "name=watched", f"runs_dir={folder}", *SETTINGS],
                  log=folder / "train.log")
    targets = targets_folder(folder) / "watched.json"
    costs: dict[str, _Total] = {}
    cpu, before = _Total(), None
    child.start()
    try:
        while not child.ended(DEADLINE_S):
            cpu.add(_tree())
            if targets.exists():
                before = cpu.sum["cpu"] if before is None else before
                for worker, cost in _status(targets).items():
                    costs.setdefault(worker, _Total()).add({"": cost})
            time.sleep(EVERY_S)
    finally:
        child.stop()
    assert before is not None, "the run ended before it served its metrics"
    watched = {part: sum(total.sum[part] for total in costs.values()) for part in PARTS}
    return watched, cpu.sum["cpu"] - before


class _Total:
    """Counts of processes that come, grow and go: what the gone had reached stays in the sum."""

    def __init__(self) -> None:
        self.sum: defaultdict[str, float] = defaultdict(float)
        self._last: dict[Any, dict[str, float]] = {}

    def add(self, now: dict[Any, dict[str, float]]) -> None:
        for key, counts in now.items():
            last = self._last.get(key, {})
            again = counts["cpu"] < last.get("cpu", 0.0)  # a process that was started anew counts from 0
            for name, value in counts.items():
                self.sum[name] += value if again else value - last.get(name, 0.0)
            self._last[key] = counts


def _tree() -> dict[Any, dict[str, float]]:
    """CPU seconds of the processes below this one, by process."""
    found: dict[Any, dict[str, float]] = {}
    for process in psutil.Process(os.getpid()).children(recursive=True):
        try:
            times = process.cpu_times()
            found[process.pid, process.create_time()] = {"cpu": times.user + times.system}
        except psutil.NoSuchProcess:
            continue
    return found


def _status(targets: Path) -> dict[str, dict[str, float]]:
    """Member -> what it says of its CPU seconds, if it does; {} where the run has just ended."""
    try:
        address = json.loads(targets.read_text())[0]["targets"][0]
        with urllib.request.urlopen(f"http://{address}/status", timeout=READ_S) as reply:
            return {worker: beat["cost"] for worker, beat in json.load(reply).items() if beat["cost"]}
    except OSError:
        return {}
