"""scripts/setup, with a stand-in for Python that installs nothing."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("call", ["scripts/setup", "tree/scripts/setup", "../scripts/setup", "./setup"])
def test_it_sets_up_from_any_folder(tmp_path: Path, call: str):
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "scripts", tree / "scripts")
    shutil.copy(ROOT / "pyproject.toml", tree)
    (tree / ".venv/bin").mkdir(parents=True)
    (tree / "docs").mkdir()
    for file in (tree / ".venv/bin/python", tree / "scripts/flavour"):
        file.write_text("#!/bin/sh\n[ $# -gt 0 ] || echo cpu\n")
        file.chmod(0o755)
    where = {"tree": tmp_path, "..": tree / "docs", ".": tree / "scripts"}.get(call.partition("/")[0], tree)
    for _ in range(2):
        done = subprocess.run([call], cwd=where, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
    assert done.stdout == "set up: .venv/bin/gagpo --help\n", "a second call only compares a hash"
