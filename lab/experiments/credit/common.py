"""The parts that all runs of an experiment share: task sets, cold start and its evaluations. Made once, then
checked."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from deploy.launch.planning.task_sets import TaskSets
from deploy.runs.folder import RunFolder
from deploy.runs.policies import folder_digest
from deploy.training.child_runs import run_child
from deploy.training.start import saying_how_to_continue
from deploy.training.sweep import cold_evaluations
from lab.experiments.credit.progress import RunsProgress
from lab.experiments.credit.records import FORMAT, same_settings, settings_of, write
from services.config.file import dump_config
from services.config.tree import Config
from services.errors import UserError
from services.files import sync_tree

COLD_START = "cold-start"
THREADS = 2
"""Threads of the cold start. A small model gains nothing from more."""
COMMON = "experiment.json"
DEADLINE_S = 3600.0
"""Longest time in seconds that a cold start may take beside the minutes of its optimisation."""
MOST_SAMPLES = 9
"""Most samples of a game, because a record keeps its wins as one digit."""


def require_official(config: Config) -> None:
    """Raises UserError if generated games would be played, which are too easy to separate estimators."""
    if config.env.data is None and not os.environ.get("ALFWORLD_DATA"):
        raise UserError("the experiment needs the official games, and ALFWORLD_DATA is not set",
                        "get them as docs/tasks/set-up.md says, and export ALFWORLD_DATA=...")


def check_settings(config: Config, *, parallel: int) -> None:
    """Raises UserError for settings that the records cannot hold, or that runs at the same time cannot share."""
    if not config.sft.enabled:
        raise UserError("sft.enabled is false, and the runs share a cold start", "leave sft.enabled as it is")
    if not config.eval.panel or config.eval.panel_samples > MOST_SAMPLES:
        raise UserError(f"the experiment judges by the held-out games, with at most {MOST_SAMPLES} samples each",
                        "set eval.panel and eval.panel_samples")
    if config.metrics.port and parallel > 1:
        raise UserError(f"metrics.port={config.metrics.port} is for one run at a time, and --parallel {parallel} makes "
                        "several", "set metrics.port=0, with which each run has a free port")


def prepare(config: Config, task_sets: TaskSets, out: Path, progress: RunsProgress) -> dict[str, Any]:
    """Returns experiment.json, which it makes if needed. Raises UserError if it belongs to another experiment."""
    file, model = out / COMMON, out / COLD_START
    if file.exists():
        common = json.loads(file.read_text(encoding="utf-8"))
        same_settings(common["settings"], config, where=str(file))
        if common["games"] != task_sets.games:
            raise UserError(f"{file} belongs to {common['games']}, but the games now are {task_sets.games}",
                            "set ALFWORLD_DATA and env.alfworld as they were, or give another --out")
        if folder_digest(model) != common["cold_start"]:
            raise UserError(f"{model} is not the cold start that the results in {out} began with",
                            "restore it, or give another --out")
        return common
    if not (model / "sft.json").exists():
        _make(config, model, progress)
    common = {
        "format": FORMAT, "settings": settings_of(config), "games": task_sets.games, "cold_start": folder_digest(model),
        "panels": {task_sets.validation_split: list(task_sets.validation),
                   task_sets.heldout_split: list(task_sets.heldout)},
        "cold_evaluations": []}
    write(file, common)
    return common


def _make(config: Config, model: Path, progress: RunsProgress) -> None:
    progress.note("making the cold start from which all runs begin")
    config_file, draft = config.run_dir / "cold-start.yaml", config.run_dir / "cold-start.new"
    dump_config(config, config_file)
    shutil.rmtree(draft, ignore_errors=True)
    threads = f"learner.threads={min(THREADS, os.cpu_count() or 1)}"
    seconds = DEADLINE_S + 60 * config.sft.minutes if config.sft.epochs is None else None  # epochs take any time
    with saying_how_to_continue("the same command"):
        run_child("the cold start", ["train", "--config", str(config_file), "--cold-start", str(draft), threads],
                  log=config.run_dir / "cold-start.log", deadline_s=seconds)
    place(draft, model)
    shutil.rmtree(draft)


def place(draft: Path, model: Path) -> None:
    """Copies the folder `draft`, perhaps to another disk. Whoever finds `model` finds all of it, also after a kill."""
    copied = model.with_name(f".{model.name}.new")
    for left in (copied, model):
        shutil.rmtree(left, ignore_errors=True)
    shutil.copytree(draft, copied)
    sync_tree(copied)
    copied.rename(model)


def keep_cold_evaluations(out: Path, common: dict[str, Any], folder: RunFolder) -> None:
    """Keeps the first finished run's evaluations of the cold start, so that later runs need not play them."""
    if not common["cold_evaluations"]:
        found = cold_evaluations(folder)
        write(out / COMMON, common | {"cold_evaluations": found})
        common["cold_evaluations"] = found
