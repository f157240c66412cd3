"""All packages of ours come from one installation, and printed commands work in the shell that ran the one before."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from services.process import packages
from services.process.packages import OURS, check_one_installation, import_folder, installation_root, program


def test_all_our_packages_come_from_one_installation():
    check_one_installation()
    assert {import_folder(name) for name in OURS} == {installation_root()}


def test_a_folder_that_shadows_one_of_ours_is_named(tmp_path: Path):
    (tmp_path / "rollout").mkdir()
    (tmp_path / "rollout" / "__init__.py").touch()
    code = "from services.process.packages import check_one_installation as check; check()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert f"package rollout comes from {tmp_path}" in done.stderr
    assert f"rename or remove {tmp_path / 'rollout'}" in done.stderr


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provides the folder of an installation's commands, which is not on the PATH."""
    folder = tmp_path / "my project" / ".venv" / "bin"
    folder.mkdir(parents=True)
    script = folder / "gagpo"
    script.write_text("#!/bin/sh\necho ours\n")
    script.chmod(0o755)
    monkeypatch.setattr(packages.sys, "executable", str(folder / "python"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return folder


def said_by_a_shell(command: str, folder: Path) -> str:
    return subprocess.run(["/bin/sh", "-c", command], cwd=folder, capture_output=True, text=True, timeout=60,
                          check=True).stdout


def test_a_command_that_is_not_on_the_path_is_printed_with_its_path(installed: Path, monkeypatch: pytest.MonkeyPatch):
    """`gagpo: command not found` was all that came of the commands that `make train` printed."""
    project = installed.parents[1]
    monkeypatch.chdir(project)
    assert program() == ".venv/bin/gagpo"
    assert said_by_a_shell(program(), project) == "ours\n"
    monkeypatch.chdir("/")
    assert said_by_a_shell(program(), Path("/")) == "ours\n"


def test_in_an_activated_environment_it_is_the_name_alone(installed: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", f"{installed}:/usr/bin")
    assert program() == "gagpo"


def test_a_gagpo_of_another_installation_on_the_path_is_not_meant(
        installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shutil.copytree(installed, tmp_path / "other")
    monkeypatch.setenv("PATH", f"{tmp_path / 'other'}:/usr/bin")
    assert program().endswith("/.venv/bin/gagpo'")


def test_without_a_script_the_interpreter_starts_it(installed: Path):
    (installed / "gagpo").unlink()
    assert program() == f"'{installed / 'python'}' -m gagpo"
