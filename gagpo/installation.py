"""A guard for our packages, whose names (`services`, `deploy` and three more) a project may have as well.

Python imports the package that it finds first, for both. So a name that exists twice is an error in one line, before
anything is imported. This file imports none of our packages, because it could get the other one.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

PACKAGES = ("services", "envservice", "rollout", "learner", "deploy")


def check() -> None:
    """Raises ImportError, in one line, if a folder of the user's and one of our packages have the same name."""
    root = Path(__file__).resolve().parents[1]
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        places = [Path(place).resolve() for place in (spec and spec.submodule_search_locations) or ()]
        other = next((place for place in places if place != root / name), None)
        if other is not None:
            raise ImportError(f"the folder {other} hides gagpo's package {name}; "
                              "rename it, or start where it is not on Python's path")
        if not places:
            raise ImportError(f"gagpo's package {name} is missing from {root}; install gagpo again")
        if (hidden := _hidden(name, root)) is not None:
            raise ImportError(f"gagpo's package {name} hides the folder {hidden}; "
                              "rename it, or start where it is not on Python's path")


def _hidden(name: str, root: Path) -> Path | None:
    """Returns a folder of modules without __init__.py in the script's folder, which our package would hide, or None."""
    folder = Path(sys.path[0] or ".").resolve() / name
    if folder.parent == root or (folder / "__init__.py").exists():
        return None
    return folder if next(folder.glob("*.py"), None) else None
