"""The packages in pyproject.toml are the packages of the repository."""

import subprocess
import tomllib
from pathlib import Path

from services.process.packages import OURS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LISTED = PROJECT["tool"]["setuptools"]["packages"]


def test_the_list_equals_the_tree():
    files = [file for top in (*OURS, "gagpo") for file in (ROOT / top).rglob("__init__.py")]
    assert sorted(LISTED) == sorted(".".join(file.parent.relative_to(ROOT).parts) for file in files)


def test_every_folder_with_modules_is_a_package():
    folders = {file.parent for top in OURS for file in (ROOT / top).rglob("*.py")}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_names_that_belong_to_others_are_no_packages():
    """`proto` is proto-plus's import name, which ray[default] installs."""
    assert {"proto", "tests", "scripts", "docs", "lab"}.isdisjoint(name.partition(".")[0] for name in LISTED)
    assert not (ROOT / "proto" / "__init__.py").exists()


def test_a_package_file_holds_only_a_docstring():
    for top in OURS:
        for file in (ROOT / top).rglob("__init__.py"):
            text = file.read_text().strip()
            assert text.startswith('"""'), file
            assert text.count('"""') == 2, file
            assert text.endswith('"""'), file


def test_every_data_file_is_shipped():
    """A file that package-data does not name would be missing from a wheel."""
    patterns = PROJECT["tool"]["setuptools"]["package-data"]
    tracked = subprocess.run(
        ["git", "ls-files", *OURS, "gagpo"], cwd=ROOT, capture_output=True, text=True, timeout=120,
        check=False).stdout.split()
    assert tracked
    for name in tracked:
        path = Path(name)
        if path.suffix == ".py":
            continue
        package = max((key for key in patterns if path.is_relative_to(key.replace(".", "/"))), key=len, default=None)
        assert package is not None, name
        inside = path.relative_to(package.replace(".", "/"))
        assert any(inside.match(pattern) for pattern in patterns[package]), name
