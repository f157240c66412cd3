"""`gagpo scale` writes the numbers into the run's folder, where the run and `--resume` find them."""

import resource
from pathlib import Path

import pytest

from deploy import cli
from deploy.runs.configs import load_config
from deploy.runs.folder import RunFolder, open_run
from deploy.runs.wanted import WantedNumbers, forget_older, numbers, read_wanted, write_wanted


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return open_run(load_config("alfworld-tiny", [f"runs_dir={tmp_path}", "name=a"]), games="g", resume=False)[0]


def test_it_changes_one_role_and_keeps_the_other(folder: RunFolder, capsys):
    assert cli.main(["scale", str(folder.path), "rollout=3"]) == 0
    assert cli.main(["scale", str(folder.path), "env=2"]) == 0
    assert read_wanted(folder) == WantedNumbers(rollout=3, env=2)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("rollout workers 1 -> 3, environment servers 1; the run is stopped")
    assert said[1].startswith("rollout workers 3, environment servers 1 -> 2")


def test_without_numbers_it_shows_them_and_writes_nothing(folder: RunFolder, capsys):
    assert cli.main(["scale", str(folder.path)]) == 0
    assert capsys.readouterr().out.startswith("rollout workers 1, environment servers 1")
    assert not folder.wanted.exists()


@pytest.mark.parametrize(("override", "kept"), [
    ("steps=5", (3, 2)),            # a supervisor's restart, or a resume with other keys
    ("rollout.workers=1", (3, 2)),  # the number that the run has had from its start
    ("rollout.workers=5", (5, 2)),  # a new decision
    ("env.servers=4", (3, 4)),
    ("autoscale.rollout=[4,8]", (4, 2)),
    ("autoscale.env=[1,1]", (3, 1)),
])
def test_a_resume_keeps_scaled_numbers_unless_its_config_has_a_new_one(folder: RunFolder, override: str, kept):
    write_wanted(folder, WantedNumbers(rollout=3, env=2))
    config = load_config("alfworld-tiny", [f"runs_dir={folder.path.parent}", "name=a", override])
    forget_older(config)
    open_run(config, games="g", resume=True)
    assert numbers(config, read_wanted(folder)) == kept
    forget_older(config)
    assert numbers(config, read_wanted(folder)) == kept, "the same start again, as a supervisor's"


def test_a_file_that_may_not_grow_is_one_line_that_names_the_file(folder: RunFolder, capsys):
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limit[1]))
    try:
        assert cli.main(["scale", str(folder.path), "rollout=3"]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert capsys.readouterr().err == (f"error: {folder.wanted}: File too large; raise the limit of a file's "
                                       "size (`ulimit -f`)\n")


def test_a_run_that_has_not_begun_has_the_numbers_of_its_config(tmp_path: Path):
    config = load_config("alfworld-tiny", [f"runs_dir={tmp_path}", "name=a", "rollout.workers=2"])
    forget_older(config)
    assert numbers(config) == (2, 1)
    assert not config.run_dir.exists()


@pytest.mark.parametrize("word", ["rollout=0", "rollout=many", "learner=2", "env", "rollout=1000000"])
def test_a_word_that_is_not_a_number_of_processes_is_refused(folder: RunFolder, capsys, word: str):
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
