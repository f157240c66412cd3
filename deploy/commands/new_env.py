"""`gagpo new-env NAME`: writes a folder with an environment of your own that works as it is."""

from __future__ import annotations

import argparse
import importlib.util
import keyword
from pathlib import Path

from services.errors import UserError
from services.process.packages import program

TEMPLATES = Path(__file__).parent / "new_env_template"
"""Folder with a template for each file of the new folder: its name plus `.txt`, with NAME for the environment."""


def add_parser(subparsers: argparse._SubParsersAction) -> None:  # pyright: ignore[reportPrivateUsage]
    """Registers the command."""
    parser = subparsers.add_parser(
        "new-env",
        description="Writes the folder NAME here: a small game, a scripted teacher for the cold start, a config and a\n"
        "test. All of it works as it is; replace the game by yours. docs/tasks/own-environment.md explains each part.",
        epilog="example:\n  gagpo new-env safe\n  pytest safe\n  gagpo train --config safe/config.yaml --dry-run",
    )
    parser.add_argument("name", metavar="NAME", help="a word in lower case: the folder's and the environment's name")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Writes the folder. Raises UserError for a name that cannot be used and a folder that exists."""
    name, folder = args.name, Path(args.name)
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower():
        raise UserError(f"{name!r} cannot be the name of a Python package", "use a word in lower case, such as my_game")
    if folder.exists():
        raise UserError(f"{folder.absolute()} exists", "choose another name, or remove it")
    if importlib.util.find_spec(name) is not None:
        raise UserError(f"a Python package {name} is installed, and would be imported instead", "choose another name")
    try:
        folder.mkdir()
        for template in sorted(TEMPLATES.glob("*.txt")):
            file = folder / template.name.removesuffix(".txt").replace("NAME", name)
            file.write_text(template.read_text(encoding="utf-8").replace("NAME", name), encoding="utf-8")
            print(file)
    except OSError as error:
        raise UserError(f"{folder.absolute()} cannot be written: {error.strerror}",
                        "start in a folder of yours") from None
    gagpo = program()
    print(f"\nNext, in this folder:\n  pytest {name}\n"
          f"  {gagpo} play {name}/train/00000000 --config {name}/config.yaml\n"
          f"  {gagpo} train --config {name}/config.yaml --dry-run")
    return 0
