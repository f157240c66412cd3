"""Writes the folder NAME here: a small game, a scripted teacher for the cold start, a config and a
test. All of it works as it is; replace the game by yours. docs/tasks/own-environment.md explains each part.

example:
  gagpo new-env safe
  pytest safe
  gagpo train --config safe/config.yaml --dry-run
"""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import sys
from pathlib import Path

from services.errors import UserError
from services.process.packages import program

TEMPLATES = Path(__file__).parent / "new_env_template"
"""Folder with a template for each file of the new folder: its name plus `.txt`, with NAME for the environment."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    parser.add_argument("name", metavar="NAME", help="a word in lower case: the folder's and the environment's name")


def run(args: argparse.Namespace) -> int:
    """Writes the folder. Raises UserError for a name that cannot be used and a folder that exists."""
    name, folder = args.name, Path(args.name)
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower():
        raise UserError(f"{name!r} cannot be the name of a Python package", "use a word in lower case, such as my_game")
    if folder.exists():
        raise UserError(f"{folder.absolute()} exists", "choose another name, or remove it")
    if name in sys.modules or importlib.util.find_spec(name) is not None:
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
