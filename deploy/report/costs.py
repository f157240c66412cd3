"""The cost of runs: minutes, GPU hours, tokens and energy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from deploy.report.runs import ReportedRun
from services.amounts import rounded


def cost(run: ReportedRun) -> dict[str, str]:
    """Returns the cost of a run by name. A figure that the run does not have is empty."""
    return {
        "RL minutes": f"{run.seconds / 60:.1f}",
        "GPU hours of RL": f"{gpus * run.seconds / 3600:.2f}" if (gpus := _gpus(run.config)) else "",
        "tokens": f"{_total(run, 'tokens_sampled'):,.0f} sampled, {_total(run, 'tokens_trained'):,.0f} trained",
        "energy of RL": f"{rounded(joules / 3.6e6)} kWh" if (joules := _total(run, "energy_joules")) else "",
    }


def costs(runs: Sequence[ReportedRun]) -> tuple[list[str], list[list[str]]]:
    """Returns head and rows of a table of runs, without the columns that no run has. Runs of one name are told by their
    folders."""
    found, names = [cost(run) for run in runs], Counter(run.name for run in runs)
    titles = [title for title in found[0] if any(one[title] for one in found)]
    return ["run", *titles], [
        [run.name if names[run.name] == 1 else str(run.folder.path), *(one[title] for title in titles)]
        for run, one in zip(runs, found, strict=True)]


def _gpus(config: Mapping[str, Any]) -> float:
    """Returns the number of GPUs that a run held, from its dotted config. Each part of an engine holds `gpus`."""
    worker = (config.get("rollout.gpus") or 0) * (config.get("rollout.tensor_parallel") or 1)
    rank = config.get("learner.gpus") or 0
    return worker * (config.get("rollout.workers") or 0) + rank * (config.get("learner.ranks") or 0)


def _total(run: ReportedRun, key: str) -> float:
    return sum(row[key] or 0 for row in run.metrics)
