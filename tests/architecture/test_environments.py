"""An environment is one folder: no other code imports it, and it imports no other environment."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from envservice.registry import BUILT_IN
from services.process.packages import OURS

ROOT = Path(__file__).parents[2]
FOLDERS = sorted({target.split(".")[1] for target in BUILT_IN.values()})
ALLOWED = {"lab/bench/alfworld.py": "alfworld", "lab/bench/webshop.py": "webshop",
           "lab/experiments/loglinear/policy.py": "alfworld"}
"""Modules that may import an environment: benches of its parts, and a policy whose features are ALFWorld's."""


def imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_only_the_folder_of_an_environment_imports_it():
    found = []
    for file in (file for top in (*OURS, "lab") for file in (ROOT / top).rglob("*.py")):
        path = file.relative_to(ROOT).as_posix()
        for folder in FOLDERS:
            inside = path.startswith(f"envservice/{folder}/") or ALLOWED.get(path) == folder
            if not inside and any(f"{name}.".startswith(f"envservice.{folder}.") for name in imports(file)):
                found.append(f"{path} imports envservice.{folder}")
    assert FOLDERS
    assert not found


@pytest.mark.parametrize("name", BUILT_IN)
def test_asking_for_one_environment_imports_no_other(name: str):
    code = f"import sys\nfrom envservice.registry import find_spec\nfind_spec({name!r})\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240, check=True)
    loaded = {module.split(".")[1] for module in done.stdout.split() if module.startswith("envservice.")}
    assert loaded & set(FOLDERS) == {BUILT_IN[name].split(".")[1]}
