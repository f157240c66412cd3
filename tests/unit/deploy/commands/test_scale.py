"""`gagpo scale` writes the numbers into the run's folder, where the run and `--resume` find them."""

from pathlib import Path

import pytest

from deploy import cli
from deploy.runs.configs import load_config
from deploy.runs.folder import RunFolder, open_run
from deploy.runs.wanted import WantedNumbers, read_wanted


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return open_run(load_config("alfworld-tiny", [f"runs_dir={tmp_path}", "name=a"]), games="g", resume=False)[0]


def test_it_changes_one_role_and_keeps_the_other(folder: RunFolder, capsys):
    assert cli.main(["scale", str(folder.path), "rollout=3"]) == 0
    assert cli.main(["scale", str(folder.path), "env=2"]) == 0
    assert read_wanted(folder) == WantedNumbers(rollout=3, env=2)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("rollout workers 1 -> 3, environment servers 1; the run does not go on now")
    assert said[1].startswith("rollout workers 3, environment servers 1 -> 2")


def test_without_numbers_it_shows_them_and_writes_nothing(folder: RunFolder, capsys):
    assert cli.main(["scale", str(folder.path)]) == 0
    assert capsys.readouterr().out.startswith("rollout workers 1, environment servers 1")
    assert not folder.wanted.exists()


@pytest.mark.parametrize("word", ["rollout=0", "rollout=many", "learner=2", "env", "rollout=1000000"])
def test_what_is_no_number_is_refused(folder: RunFolder, capsys, word: str):
    assert cli.main(["scale", str(folder.path), word]) == 2
    assert f"{word!r} is no number of processes" in capsys.readouterr().err


@pytest.mark.parametrize(("override", "word", "said"), [
    ("env.urls=[http://env:8100]", "env=2", "scale them where they run"),
    ("autoscale.rollout=[1,4]", "rollout=2", "autoscale.rollout chooses the number of rollout workers"),
])
def test_numbers_that_others_choose_are_refused(tmp_path: Path, capsys, override: str, word: str, said: str):
    folder, _ = open_run(load_config("alfworld-tiny", [f"runs_dir={tmp_path}", "name=b", override]), games="g",
                         resume=False)
    assert cli.main(["scale", str(folder.path), word]) == 2
    assert said in capsys.readouterr().err
