"""An environment is one folder: no other code imports it, and it imports no other environment."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from envservice.registry import BUILT_IN
from services.process.packages import OURS

ROOT = Path(__file__).parents[2]
FOLDERS = sorted({target.split(".")[1] for target in BUILT_IN.values()})
ALLOWED = {"lab/bench/alfworld.py": "alfworld", "lab/bench/webshop.py": "webshop",
           "lab/webshop_scores.py": "webshop",
           "lab/experiments/loglinear/policy.py": "alfworld", "lab/scienceworld.py": "scienceworld"}
"""Modules that may import an environment: benches and checks of its parts, and a policy whose features are ALFWorld's.
"""


def imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_only_the_folder_of_an_environment_imports_it():
    found = []
    for file in (file for top in (*OURS, "lab") for file in (ROOT / top).rglob("*.py")):
        path, names = file.relative_to(ROOT).as_posix(), [f"{name}." for name in imports(file)]
        for folder in FOLDERS:
            inside = path.startswith(f"envservice/{folder}/") or ALLOWED.get(path) == folder
            if not inside and any(name.startswith(f"envservice.{folder}.") for name in names):
                found.append(f"{path} imports envservice.{folder}")
    assert FOLDERS
    assert not found


ASKING = """
import os, sys
from envservice.registry import BUILT_IN, find_spec

for name in BUILT_IN:
    if not (child := os.fork()):
        find_spec(name)
        print(name, *sys.modules, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_asking_for_one_environment_imports_no_other():
    """Each is asked for in a process of its own, forked from one that has only the registry."""
    done = subprocess.run(
        [sys.executable, "-c", ASKING], cwd=ROOT, capture_output=True, text=True, timeout=240, check=True)
    loaded = {}
    for line in done.stdout.splitlines():
        name, *modules = line.split()
        loaded[name] = {module.split(".")[1] for module in modules if module.startswith("envservice.")} & set(FOLDERS)
    assert loaded == {name: {target.split(".")[1]} for name, target in BUILT_IN.items()}
