"""Configs by name: `alfworld-tiny` is deploy/configs/alfworld-tiny.yaml."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from services.config import file as config_file
from services.config.tree import Config

SHIPPED = Path(__file__).resolve().parents[1] / "configs"
"""The folder of the configs that come with the package."""


def load_config(path: Path | str, overrides: Sequence[str] = ()) -> Config:
    """Reads a config file or a shipped config. Raises UserError as services.config.file.load_config does."""
    return config_file.load_config(path, overrides, shipped_in=SHIPPED)


def find_config(path: Path | str) -> Path:
    """Returns the file of a path or of a shipped name. Raises UserError that lists the shipped names."""
    return config_file.find_config(path, SHIPPED)
