"""Configs by name: `alfworld-tiny` is deploy/configs/alfworld-tiny.yaml.

Configs from here have every option of their estimator and their state key under `learner.credit`: given or default.
Configs of light_config have only the given options. The config.yaml of a run has all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from services.config import file as config_file
from services.config.keys import OPEN_SECTION
from services.config.sections import CreditSection
from services.config.tree import Config

SHIPPED = Path(__file__).resolve().parents[1] / "configs"
"""The folder of the configs that come with the package."""
_CHOICES = (f"{OPEN_SECTION}estimator", f"{OPEN_SECTION}state_key")
"""The keys that decide which options there are."""


def load_config(path: Path | str, overrides: Sequence[str] = ()) -> Config:
    """Reads a config file or a shipped config. To load its model, pass it through model_sources.with_local_model first.

    Options that only the file's own estimator has are left out if an override names another one. Raises UserError as
    services.config.file.load_config does, and for an unknown estimator or option.
    """
    config = config_file.load_config(path, overrides, shipped_in=SHIPPED)
    keys = [override.partition("=")[0] for override in overrides]
    if not set(_CHOICES) & set(keys):
        return _with_options(config)
    others = [override for key, override in zip(keys, overrides, strict=True) if key not in _CHOICES]
    return _changed(config, config_file.load_config(path, others, shipped_in=SHIPPED), keys)


def default_config(overrides: Sequence[str] = ()) -> Config:
    """Returns the defaults, changed by `overrides`, for commands that need no run. Raises UserError as load_config."""
    return _with_options(config_file.default_config(overrides))


def light_config(path: Path | str | None, overrides: Sequence[str] = ()) -> Config:
    """Returns a config with the options of its estimator as they are written; None stands for the defaults.

    It is for environment servers, whose images have no numpy, and for commands that look at a run or play its model:
    the module of the run's own estimator may be elsewhere. Raises UserError as services.config.file.load_config does.
    """
    if path is None:
        return config_file.default_config(overrides)
    return config_file.load_config(path, overrides, shipped_in=SHIPPED)


def config_to_play(path: Path | str | None, overrides: Sequence[str] = ()) -> Config:
    """As light_config, but overrides of `learner.credit` are checked, as load_config does: a misspelt one is refused.

    Playing does not need them, so the module of the run's own estimator is imported only if an override is one.
    """
    if not any(override.startswith(OPEN_SECTION) for override in overrides):
        return light_config(path, overrides)
    return default_config(overrides) if path is None else load_config(path, overrides)


def lay_over(config: Config, values: Mapping[str, object]) -> Config:
    """Returns `config` with `values` at their dotted keys. Raises UserError for an unknown key or a bad value.

    Options that only its own estimator has are left out if the values name another one.
    """
    return _changed(config_file.lay_over(config, values), config, values)


def find_config(path: Path | str) -> Path:
    """Returns the file of a path or of a shipped name. Raises UserError that lists the shipped names."""
    return config_file.find_config(path, SHIPPED)


def _changed(config: Config, former: Config, keys: Iterable[str]) -> Config:
    """Returns the config with its options. `former`: the config before `keys` were changed."""
    from learner.credit.registry import without_former

    given = {key.removeprefix(OPEN_SECTION).partition(".")[0] for key in keys if key.startswith(OPEN_SECTION)}
    return _with_options(_with_credit(config, without_former(config.learner.credit, former.learner.credit, given)))


def _with_options(config: Config) -> Config:
    from learner.credit.registry import completed

    return _with_credit(config, completed(config.learner.credit))


def _with_credit(config: Config, credit: CreditSection) -> Config:
    return config.model_copy(update={"learner": config.learner.model_copy(update={"credit": credit})})
