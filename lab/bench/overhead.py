"""The cost of telemetry: CPU seconds in metrics, logs and archive, divided by those of all processes of a short run.

It measures a real run on generated games from the moment that its metrics are served. The cold start before it is left
out, because it uses much CPU and little telemetry. Environment servers count with all their CPU; the cost of their own
counters is not separated.
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

from deploy.runs.folder import targets_folder
from deploy.training.child_runs import Child
from lab.bench.figures import Figure, Tell, silent

STEPS = 4
SETTINGS = (f"steps={STEPS}", "sft.minutes=0.3", "sft.demos_per_game=1", "learner.groups_per_step=6",
            "eval.every=0", "eval.panel=0", "rollout.slots=48")
PARTS = ("metrics", "logs", "archive")
KEPT = "turns"
"""The part that keeps finished turns in the store; it is told beside what being watched costs."""
DEADLINE_S = 1200.0
EVERY_S = 0.5
READ_S = 5.0


def run(tell: Tell = silent) -> list[Figure]:
    """Runs the bench in about two minutes. Raises ChildFailed with the run's last lines if it fails."""
    tell("a run of a few steps", 0, 1)
    with tempfile.TemporaryDirectory(prefix="gagpo-bench-") as folder:
        watched, total = _measure(Path(folder))
    figures = [Figure(name=f"CPU of {part}", value=watched[part], unit="s") for part in (*PARTS, KEPT)]
    share = 100 * sum(watched[part] for part in PARTS) / total
    return [*figures, Figure(name="CPU of the run", value=total, unit="s"),
            Figure(name="overhead", value=share, unit="%"),
            Figure(name="overhead of kept turns", value=100 * watched[KEPT] / total, unit="%")]


def _measure(folder: Path) -> tuple[dict[str, float], float]:
    """Returns (part -> CPU seconds, CPU seconds of all processes)."""
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
    watched = {part: sum(total.sum[part] for total in costs.values()) for part in (*PARTS, KEPT)}
    return watched, cpu.sum["cpu"] - before


class _Total:
    """Sums counters of processes that start, grow and end. The last value of an ended process stays in the sum."""

    def __init__(self) -> None:
        self.sum: defaultdict[str, float] = defaultdict(float)
        self._last: dict[Any, dict[str, float]] = {}

    def add(self, now: dict[Any, dict[str, float]]) -> None:
        for key, counts in now.items():
            last = self._last.get(key, {})
            again = counts["cpu"] < last.get("cpu", 0.0)  # a restarted process counts from 0
            for name, value in counts.items():
                self.sum[name] += value if again else value - last.get(name, 0.0)
            self._last[key] = counts


def _tree() -> dict[Any, dict[str, float]]:
    """Returns the CPU seconds of the processes below this one, by process."""
    found: dict[Any, dict[str, float]] = {}
    for process in psutil.Process(os.getpid()).children(recursive=True):
        try:
            times = process.cpu_times()
            found[process.pid, process.create_time()] = {"cpu": times.user + times.system}
        except psutil.NoSuchProcess:
            continue
    return found


def _status(targets: Path) -> dict[str, dict[str, float]]:
    """Returns process name -> the CPU seconds that it reports; {} if the run has just ended."""
    try:
        address = json.loads(targets.read_text(encoding="utf-8"))[0]["targets"][0]
        with urllib.request.urlopen(f"http://{address}/status", timeout=READ_S) as reply:
            return {worker: beat["cost"] for worker, beat in json.load(reply).items() if beat["cost"]}
    except OSError:
        return {}
