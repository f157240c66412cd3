"""Imports our packages next to a project's own ones of the same name (`services`, `deploy` and three more).

Python has one module for each name. If a project takes one of ours, our modules are imported as
`gagpo.packages.services` and so on, from the same files, and the project keeps its names:

    import gagpo                   # in a folder with a package `services`
    import services.mail           # the project's
    gagpo.credit(group)            # `from services.errors import ...` in our files means gagpo.packages.services.errors

A module finds its `__import__` among its builtins, so ours get builtins with another one; nobody else's change.
Training starts processes that import our packages by their plain names, so there a name that exists twice is an error
in one line. This file imports none of our packages, because it could get the other one.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGES = ("services", "envservice", "rollout", "learner", "deploy")
PREFIX = "gagpo.packages"
ROOT = Path(__file__).resolve().parents[1]


def find_conflict() -> str | None:
    """Returns what keeps our packages from being imported by their plain names, as a message; None if nothing does."""
    for name in PACKAGES:
        place = _folder_of_modules(name) or _place_of(name)
        if place is None:
            return f"gagpo's package {name} is not on Python's path in {ROOT}; install gagpo again"
        if place != ROOT / name:
            return (f"{place} and gagpo's package {name} have the same name; "
                    "rename it, or start where it is not on Python's path")
    return None


def _place_of(name: str) -> Path | None:
    """Returns the folder or file that `import name` uses, or None if it finds none."""
    if name in sys.modules:
        module = sys.modules[name]
        places = [*getattr(module, "__path__", ()), getattr(module, "__file__", None) or "a module without a file"]
    else:
        spec = importlib.util.find_spec(name)
        places = [*(spec.submodule_search_locations or ()), spec.origin or ""] if spec else []
    return Path(places[0]).resolve() if places else None


def _folder_of_modules(name: str) -> Path | None:
    """Returns a folder without __init__.py in the script's folder, which our package would hide from it, or None."""
    folder = Path(sys.path[0] or ".").resolve() / name
    if folder.parent == ROOT or (folder / "__init__.py").exists():
        return None
    return folder if next(folder.glob("*.py"), None) else None


def check() -> None:
    """Raises ImportError, in one line, if our packages cannot be imported by their plain names."""
    if (conflict := find_conflict()) is not None:
        raise ImportError(conflict)


def load(module: str) -> ModuleType:
    """Imports a module of ours, by its plain name or under PREFIX."""
    return importlib.import_module(f"{PREFIX}.{module}" if _apart and not module.startswith("gagpo.") else module)


def _import(name: str, globals: Mapping[str, object] | None = None, locals: Mapping[str, object] | None = None,
            fromlist: Sequence[str] | None = (), level: int = 0) -> Any:
    """The `__import__` of our modules: a plain name of ours means the module under PREFIX."""
    top = name.partition(".")[0]
    if level or top not in PACKAGES:
        return builtins.__import__(name, globals, locals, fromlist or (), level)
    module = builtins.__import__(f"{PREFIX}.{name}", globals, locals, fromlist or (), 0)
    return module if fromlist else sys.modules[f"{PREFIX}.{top}"]


class _Loader(SourceFileLoader):
    """Gives a module of ours the builtins with `_import`."""

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import}
        super().exec_module(module)


class _Finder(MetaPathFinder):
    """Finds the modules of gagpo, those under PREFIX included, for `_Loader`. Plain names are the project's alone: ours
    would hide a folder without __init__.py."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None,
                  ) -> ModuleSpec | None:
        if fullname in PACKAGES:
            return PathFinder.find_spec(fullname, [place for place in sys.path if Path(place).resolve() != ROOT])
        if not fullname.startswith("gagpo."):
            return None
        if fullname.startswith(f"{PREFIX}.") and fullname.split(".")[2] not in PACKAGES:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


_apart = find_conflict() is not None
if _apart:
    sys.meta_path.insert(0, _Finder())
