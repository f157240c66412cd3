"""Arguments that several commands share."""

from __future__ import annotations

import argparse

from services.config import Config
from services.config_file import load_config


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """`--config FILE` and dotted overrides: read them with config_from."""
    parser.add_argument("--config", required=True, metavar="FILE", help="a YAML file, or the name of a shipped config")
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="set one key of the config, for example learner.lr=3e-4")


def config_from(args: argparse.Namespace) -> Config:
    """The validated config that the command line names. Raises UserError."""
    return load_config(args.config, args.overrides)
