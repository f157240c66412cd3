"""Configs by name: `alfworld-tiny` is deploy/configs/alfworld-tiny.yaml.

Configs from here have every option of their estimator and their state key under `learner.credit`: given or default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from services.config import file as config_file
from services.config.tree import Config

SHIPPED = Path(__file__).resolve().parents[1] / "configs"
"""The folder of the configs that come with the package."""


def load_config(path: Path | str, overrides: Sequence[str] = ()) -> Config:
    """Reads a config file or a shipped config. What trains or plays its model finds that by deploy/runs/hub.py first.

    Raises UserError as services.config.file.load_config does, and for an unknown estimator or option.
    """
    return _with_options(config_file.load_config(path, overrides, shipped_in=SHIPPED))


def default_config(overrides: Sequence[str] = ()) -> Config:
    """Returns the defaults, changed by `overrides`, for commands that need no run. Raises UserError as load_config."""
    return _with_options(config_file.default_config(overrides))


def light_config(path: Path | str | None, overrides: Sequence[str] = ()) -> Config:
    """Returns a config without the options of its estimator, for environment servers; None stands for the defaults.

    Those options need numpy, which the images of environment servers do not have. Raises UserError as
    services.config.file.load_config does.
    """
    if path is None:
        return config_file.default_config(overrides)
    return config_file.load_config(path, overrides, shipped_in=SHIPPED)


def lay_over(config: Config, values: Mapping[str, object]) -> Config:
    """Returns `config` with `values` at their dotted keys. Raises UserError for an unknown key or a bad value."""
    return _with_options(config_file.lay_over(config, values))


def find_config(path: Path | str) -> Path:
    """Returns the file of a path or of a shipped name. Raises UserError that lists the shipped names."""
    return config_file.find_config(path, SHIPPED)


def _with_options(config: Config) -> Config:
    from learner.credit.registry import completed

    credit = completed(config.learner.credit)
    return config.model_copy(update={"learner": config.learner.model_copy(update={"credit": credit})})
