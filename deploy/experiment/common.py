"""The common ground of an experiment's runs: panels, cold start, and how that did. Made once, checked ever after."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from deploy.experiment.progress import RunsProgress
from deploy.launch.task_sets import TaskSets
from deploy.runs.folder import RunFolder
from deploy.runs.records import FORMAT, folder_digest, same_settings, settings_of, write
from deploy.training.child_runs import run_child
from deploy.training.sweep import cold_evaluations
from services.config.file import dump_config
from services.config.tree import Config
from services.errors import UserError

COLD_START = "cold-start"
THREADS = 2
"""Of the cold start: nothing else runs yet, and a small model gains nothing from more."""
COMMON = "experiment.json"
DEADLINE_S = 3600.0
"""Of the cold start."""
MOST_SAMPLES = 9
"""A game's wins are kept as one digit."""


def require_official(config: Config) -> None:
    """Raises UserError where generated games would be played: they are too easy to tell estimators apart."""
    if config.env.data is None and not os.environ.get("ALFWORLD_DATA"):
        raise UserError("the experiment is about the official games, and ALFWORLD_DATA is not set",
                        "run alfworld-download and export ALFWORLD_DATA=...")


def check_settings(config: Config) -> None:
    """Raises UserError for what the records cannot hold."""
    if not config.sft.enabled:
        raise UserError("sft.enabled is false, and the runs share a cold start", "leave sft.enabled as it is")
    if not config.eval.panel or config.eval.panel_samples > MOST_SAMPLES:
        raise UserError(f"the experiment judges by the held-out panel, at up to {MOST_SAMPLES} samples a game",
                        "set eval.panel and eval.panel_samples")


def prepare(config: Config, panels: TaskSets, out: Path, progress: RunsProgress) -> dict[str, Any]:
    """experiment.json, made where it is not there. Raises UserError where it belongs to another experiment."""
    file, model = out / COMMON, out / COLD_START
    if file.exists():
        common = json.loads(file.read_text())
        same_settings(common["settings"], config, where=str(file))
        if common["games"] != panels.games:
            raise UserError(f"{file} is about {common['games']}, and now there is {panels.games}",
                            "set ALFWORLD_DATA and env.alfworld as they were, or give another --out")
        if folder_digest(model) != common["cold_start"]:
            raise UserError(f"{model} is not the cold start that the results in {out} began with",
                            "restore it, or give another --out")
        return common
    if not (model / "sft.json").exists():
        _make(config, model, progress)
    common = {
        "format": FORMAT, "settings": settings_of(config), "games": panels.games, "cold_start": folder_digest(model),
        "panels": {panels.validation_split: list(panels.validation), panels.heldout_split: list(panels.heldout)},
        "cold_evaluations": []}
    write(file, common)
    return common


def _make(config: Config, model: Path, progress: RunsProgress) -> None:
    progress.note("the cold start that all runs begin with")
    config_file, draft = config.run_dir / "cold-start.yaml", config.run_dir / "cold-start.new"
    dump_config(config, config_file)
    shutil.rmtree(draft, ignore_errors=True)
    threads = f"learner.threads={min(THREADS, os.cpu_count() or 1)}"
    run_child("the cold start", ["sft", "--config", str(config_file), "--out", str(draft), threads],
              log=config.run_dir / "cold-start.log", deadline_s=DEADLINE_S)
    shutil.copytree(draft, model, dirs_exist_ok=True)
    shutil.rmtree(draft)


def keep_cold_evaluations(out: Path, common: dict[str, Any], folder: RunFolder) -> None:
    """The first run to finish says how the cold start did; the later ones are told, and need not play for it."""
    if not common["cold_evaluations"]:
        common["cold_evaluations"] = cold_evaluations(folder)
        write(out / COMMON, common)
