"""The commands of the tutorial that need no trained run do what it says, and so does the one of the examples."""

from __future__ import annotations

import io
import re
import shlex
import sys
from pathlib import Path
from statistics import fmean

import pytest

from deploy.cli import main
from deploy.launch.planning import machine
from deploy.runs.configs import load_config
from envservice.registry import find_spec, make_template, open_environment
from rollout.demonstrations import demonstrate
from services.amounts import GIB

ROOT = Path(__file__).parents[3]
TUTORIAL = (ROOT / "docs/tutorial.md").read_text()
PLAYED = re.compile(r"gagpo (play \S+ --env [\w.:]+)")


@pytest.fixture(autouse=True)
def keyboard(monkeypatch: pytest.MonkeyPatch):
    """Somebody who types 1 ten times."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("1\n" * 10))


@pytest.fixture
def nim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tutorial's two files, in the working directory."""
    for name in ("nim.py", "nim.yaml"):
        code = re.search(rf"Write `{re.escape(name)}`.*?:\n\n```\w+\n(.*?)```", TUTORIAL, re.DOTALL)
        assert code
        (tmp_path / name).write_text(code[1])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("nim")
def test_the_tutorials_game_is_listed_and_played(capsys: pytest.CaptureFixture[str]):
    command = PLAYED.search(TUTORIAL)
    assert command
    assert main(["play", "--tasks", "train", "--env", "nim:SPEC"]) == 0
    assert shlex.split(command[1])[1] in capsys.readouterr().out.splitlines()
    assert main(shlex.split(command[1])) == 0
    assert re.search(r"won after \d+ steps", capsys.readouterr().out)


@pytest.mark.usefixtures("nim")
def test_the_tutorials_game_can_be_trained_from_scratch(monkeypatch: pytest.MonkeyPatch,
                                                        capsys: pytest.CaptureFixture[str]):
    """The cold start imitates won games, and leaves something to RL."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(machine, "cpu_count", lambda: 2.0)
    monkeypatch.setattr(machine, "available_memory", lambda: 16 * GIB)
    assert main(["train", "--config", "nim.yaml", "--dry-run"]) == 0
    assert "imitates a scripted player" in capsys.readouterr().out
    config = load_config("nim.yaml")
    spec, games = find_spec("nim:SPEC"), open_environment(config.env)
    assert spec.teacher
    played = [demonstrate(games, task, teacher=spec.teacher, template=make_template(config.env), seed=0,
                          sft=config.sft, max_steps=config.env.max_steps).won for task in games.tasks("train")]
    assert 0.3 < fmean(played) < 0.6


def test_the_examples_game_is_played(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    command = PLAYED.search((ROOT / "examples/README.md").read_text())
    assert command
    monkeypatch.syspath_prepend(ROOT / "examples")
    assert main(shlex.split(command[1])) == 0
    assert re.search(r"won after \d+ step", capsys.readouterr().out)


def test_the_tutorials_group_has_the_credit_that_it_tells_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                            capsys: pytest.CaptureFixture[str]):
    """GRPO gives every step of an episode the same advantage; the default does not."""
    group = re.search(r"echo '(\{.*?\})' > group.json", TUTORIAL, re.DOTALL)
    assert group
    (tmp_path / "group.json").write_text(group[1])
    monkeypatch.chdir(tmp_path)

    def advantages(*options: str) -> list[list[str]]:
        assert main(["credit", "group.json", "--table", *options]) == 0
        rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:5]]
        return [[row[-1] for row in rows if row[0] == episode] for episode in "01"]

    assert all(len(set(episode)) == 1 for episode in advantages("--estimator", "grpo"))
    assert advantages() == [["1.2247", "0.0000"], ["-1.2247", "0.0000"]]
