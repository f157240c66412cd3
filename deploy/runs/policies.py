"""Finds the run or the policy that a command names, and the config to play it by."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.runs.configs import load_config
from deploy.runs.folder import RunFolder
from services.config.tree import Config
from services.errors import UserError

RUNS = Path("runs")
"""The folder in which a bare name is looked up: the default of runs_dir."""


def resolve(policy: Path, config_file: str | None, settings: Mapping[str, object | None],
            overrides: Sequence[str] = ()) -> tuple[Config, Path]:
    """Returns the config to play by and the Hugging Face folder. A run's folder stands for its trained model.

    Settings with a value are laid over the config, then the overrides. Raises UserError if the model is missing, or
    any config to play it by.
    """
    run = RunFolder(policy)
    model = run.trained_model if run.config_file.exists() else policy
    if not (model / "config.json").exists():
        raise UserError(f"{model} holds no model", "give a Hugging Face folder, or the folder of a finished run")
    beside = next((path for path in (run.config_file, policy.parent / "config.yaml") if path.exists()), None)
    if config_file is None and beside is None:
        raise UserError(f"{policy} has no config beside it", "say how to play by --config")
    laid = [f"{key}={value}" for key, value in settings.items() if value is not None]
    config = load_config(config_file or str(beside),
                         [*laid, *overrides, f"model.path={model.resolve()}", "sft.enabled=false"])
    return config, model


def run_path(text: str) -> Path:
    """Returns the folder that a command line names: a path, or the bare name of a run in ./runs. Checks no content."""
    path, named = Path(text), RUNS / text
    return named if not path.exists() and named.exists() else path


def find_run(path: Path) -> RunFolder:
    """Returns the folder of an existing run. Raises UserError that names the nearest run, or lists those that exist."""
    folder = RunFolder(path)
    if folder.config_file.exists():
        return folder
    known = {found.parent.name: found.parent for found in sorted(RUNS.glob("*/config.yaml"))}
    near = difflib.get_close_matches(path.name, known, n=1)
    raise UserError(f"{path} is no run's folder",
                    f"did you mean {known[near[0]]}?" if near else
                    f"give one of {', '.join(map(str, known.values()))}" if known else "give runs/<name>")
