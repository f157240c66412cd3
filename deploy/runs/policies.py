"""Finds the policy that a command names, and the config that it is played by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.runs.configs import load_config
from deploy.runs.folder import RunFolder
from services.config.tree import Config
from services.errors import UserError


def resolve(policy: Path, config_file: str | None, settings: Mapping[str, object | None],
            overrides: Sequence[str] = ()) -> tuple[Config, Path]:
    """(config, Hugging Face folder) of a run's folder, which stands for its trained model, or of a model's folder.

    `settings` with a value are laid over the config, then the overrides. Raises UserError where the model or any
    config to play it by is missing.
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
