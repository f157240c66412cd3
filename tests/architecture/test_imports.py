"""Imports follow one direction, and the command line imports nothing heavy."""

import subprocess
import sys
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "ray", "vllm", "transformers", "matplotlib", "pyarrow", "pandas", "textworld", "alfworld")
COMMANDS = (["--help"], ["train", "--help"], ["credit", "--help"], ["nonsense"])
COMMAND_LINE = f"""
import sys, deploy.cli
for argv in {COMMANDS}:
    try:
        deploy.cli.main(argv)
    except SystemExit:
        pass
"""


def loaded(code: str, watched: tuple[str, ...] = HEAVY) -> set[str]:
    """Returns the modules of `watched` that a new interpreter has imported after running `code`."""
    code += f"import sys\nprint('LOADED', *(name for name in {watched!r} if name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240, check=True)
    return set(done.stdout.splitlines()[-1].split()[1:])


def test_the_import_line_holds(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    assert lint_imports(no_cache=True) == 0


def test_the_command_line_loads_nothing_heavy():
    assert loaded(COMMAND_LINE) == set()


def test_a_config_is_read_without_anything_heavy():
    assert loaded("from deploy.runs.configs import load_config\nload_config('alfworld-tiny')\n") == set()


def test_the_environment_server_loads_no_trainer_and_no_store():
    modules = sorted((ROOT / "envservice").rglob("*.py"))
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in modules if file.stem != "__init__"]
    code = "".join(f"import {name}\n" for name in names)
    assert len(names) > 5
    assert loaded(code, ("torch", "ray", "vllm", "redis", "textworld")) == set()
