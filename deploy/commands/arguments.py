"""Arguments that several commands share."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

from deploy.runs.configs import default_config, light_config, load_config
from deploy.runs.policies import run_path
from services.config.tree import Config, EnvSection
from services.errors import UserError
from services.process.own_code import OWN_CODE


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


def env_from(args: argparse.Namespace, read: Callable[..., Config] = light_config) -> EnvSection:
    """Returns the settings of the environment that the command line names, from a config that `read` reads (see
    deploy/runs/configs.py). Raises UserError."""
    env = read(args.config, args.overrides).env
    if env.more and args.env is not None:
        entry = next((one for one in env.entries if one.name == args.env), None)
        if entry is None:
            raise UserError(f"--env {args.env} is none of the environments in the list",
                            f"choose one of {', '.join(one.name for one in env.entries)}")
        return entry
    return env if args.env is None else env.model_copy(update={"name": args.env})


def add_run_argument(parser: argparse.ArgumentParser) -> None:
    """Adds `RUN`: read it as args.run_folder."""
    parser.add_argument("run_folder", metavar="RUN", type=run_path, help="a run's folder, or its name in runs/")


def add_address_arguments(parser: argparse.ArgumentParser, port: int) -> None:
    """Adds `--host` and `--port` of a server that listens on `port` unless another is given."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    parser.add_argument("--port", type=int, default=port, help="0: a free one, printed (default: %(default)s)")


def add_own_code(parser: argparse.ArgumentParser) -> None:
    """Adds `--own-code`, which lets a command import the user's code that a run's config names (deploy/cli.py)."""
    parser.add_argument(OWN_CODE, action="store_true", help="import the environment, estimator and state key that the "
                        "run's config names as module:attribute, and print which (default: shipped ones alone)")


def optional_config_from(args: argparse.Namespace) -> Config:
    """Returns the config that the command line names, or the defaults, with its overrides. Raises UserError."""
    return load_config(args.config, args.overrides) if args.config else default_config(args.overrides)


def is_setting(word: str) -> bool:
    """Whether a word is KEY=VALUE and not a folder or an address with a `=` in its name."""
    key, equals, _ = word.partition("=")
    return bool(equals) and "/" not in key and not Path(word).is_dir()


def positive(text: str) -> int:
    """Parses a whole number of at least 1. Raises ArgumentTypeError, which argparse reports."""
    return _whole(text, 1)


def counted(text: str) -> int:
    """Parses a whole number of at least 0. Raises as `positive` does."""
    return _whole(text, 0)


def above_zero(text: str) -> float:
    """Parses a finite number above 0. Raises as `positive` does."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"it must be a number, not {text!r}") from None
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"it must be above 0, not {text}")
    return number


def _whole(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"it must be a whole number, not {text!r}") from None
    if number < least:
        raise argparse.ArgumentTypeError(f"it must be at least {least}, not {number}")
    return number
