"""Steps per minute of the whole loop at staleness 0, 1 and 2, against the larger of sampling and training.

At staleness 0 rollout worker and learner take turns, and a step takes the sum of both. From staleness 1 on they work at
the same time, and a step should take little more than the larger. Both have one thread, so that two cores are enough.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from deploy.training.child_runs import run_child
from lab.bench.figures import Figure, Report, silent
from services.telemetry.metrics_file import MetricsRow, read_metrics

STEPS = 8
WARM = 2
"""Steps that are not measured: the first ones fill the queue."""
STALENESS = (0, 1, 2)
LIMIT_S = 3600.0
KEYS = (f"steps={STEPS}", "sft.enabled=false", "eval.every=0", "eval.panel=0", "eval.compare_cold_start=false",
        "checkpoint.every=1000", "learner.groups_per_step=4", "learner.group_size=8", "learner.threads=1",
        "rollout.threads=1", "rollout.slots=32", "rollout.max_response_tokens=12")
TRAINING = ("credit", "pack", "forward_backward", "optimizer")


def run(report: Report = silent) -> list[Figure]:
    """Returns the figures of three runs from one model of random weights."""
    from lab.bench.rollout import make_model

    with tempfile.TemporaryDirectory(prefix="gagpo-bench-") as folder:
        model = Path(folder) / "model"
        make_model(model)
        rows = []
        for index, staleness in enumerate(STALENESS):
            report(f"staleness {staleness}", index, len(STALENESS))
            rows.append(_run(Path(folder), model, staleness))
    sampling, training = _mean(rows[0], ("wait",)), _mean(rows[0], TRAINING)
    figures = [Figure(name="sampling alone", value=sampling, unit="s/step"),
               Figure(name="training alone", value=training, unit="s/step")]
    for staleness, measured in zip(STALENESS, rows, strict=True):
        best = 60 / (max(sampling, training) if staleness else sampling + training)
        reached = 60 * (len(measured) - 1) / (measured[-1]["time"] - measured[0]["time"])
        figures.append(Figure(name=f"staleness {staleness}", value=reached, unit="steps/min", reference=best,
                              ratio=reached / best))
    return figures


def _run(folder: Path, model: Path, staleness: int) -> list[MetricsRow]:
    """Returns the measured rows of metrics.jsonl."""
    name = f"staleness-{staleness}"
    arguments = ["train", "--config", "alfworld-tiny", *KEYS, f"model.path={model}", f"runs_dir={folder}",
                 f"name={name}", f"learner.staleness={staleness}"]
    run_child(f"the run {name}", arguments, log=folder / f"{name}.log", deadline_s=LIMIT_S)
    return read_metrics(folder / name / "metrics.jsonl")[WARM:]


def _mean(rows: list[MetricsRow], phases: tuple[str, ...]) -> float:
    return sum(row[f"seconds/{phase}"] for row in rows for phase in phases) / len(rows)
