"""Arguments that several commands share."""

from __future__ import annotations

import argparse

from deploy.runs.configs import default_config, light_config, load_config
from services.config.tree import Config, EnvSection


def add_config_arguments(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Adds `--config FILE` and dotted overrides: read them with config_from."""
    parser.add_argument("--config", required=required, metavar="FILE",
                        help="a YAML file, or the name of a shipped config")
    parser.add_argument("overrides", nargs="*", default=[], metavar="KEY=VALUE",
                        help="set one key of the config, for example learner.lr=3e-4")


def config_from(args: argparse.Namespace) -> Config:
    """Returns the validated config that the command line names. Raises UserError."""
    return load_config(args.config, args.overrides)


def add_env_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds `--env NAME`, `--config FILE` and dotted overrides, all optional: read them with env_from."""
    parser.add_argument("--env", metavar="NAME", help="the environment, as env.name (default: the config's, alfworld)")
    parser.add_argument("--config", metavar="FILE", help="settings of the environment (default: env's defaults)")
    parser.add_argument("overrides", nargs="*", default=[], metavar="KEY=VALUE", help="set one key of the config")


def env_from(args: argparse.Namespace) -> EnvSection:
    """Returns the settings of the environment that the command line names. Raises UserError."""
    env = light_config(args.config, args.overrides).env
    return env if args.env is None else env.model_copy(update={"name": args.env})


def optional_config_from(args: argparse.Namespace) -> Config:
    """Returns the config that the command line names, or the defaults, with its overrides. Raises UserError."""
    return load_config(args.config, args.overrides) if args.config else default_config(args.overrides)


def positive(text: str) -> int:
    """Returns a whole number of at least 1, as the type of an argument. argparse reports the errors of other texts."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"it must be at least 1, not {number}")
    return number
