"""The folder of a run that this user may not write to."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.launch.checks import preflight
from deploy.runs.configs import load_config
from deploy.runs.folder import open_run
from services.errors import UserError

NOBODY = 65534


@pytest.fixture
def runs_of_another(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Provides the runs of root, which others may read, to somebody who has no rights of his own."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)  # games that only root may read would be one more mistake
    with tempfile.TemporaryDirectory() as folder:  # pytest's own may be entered by its user alone
        Path(folder).chmod(0o755)
        yield Path(folder)


def refusal(*overrides: str) -> str:
    os.seteuid(NOBODY)
    try:
        with pytest.raises(UserError) as refused:
            preflight.check(load_config("alfworld-tiny", overrides))
    finally:
        os.seteuid(0)
    return str(refused.value)


def test_the_folder_of_a_run_that_goes_on_is_to_be_made_writable(runs_of_another: Path):
    """Another runs_dir was advised, in which there is no run to go on with."""
    key = f"runs_dir={runs_of_another}"
    run, _ = open_run(load_config("alfworld-tiny", [key, "name=a", "shared=true"]), games="g", resume=False)
    run.path.chmod(0o755)
    assert refusal(key, "name=a") == (
        f"{run.path} cannot be written (Permission denied: {run.path}); make it writable for this user")


def test_a_new_run_is_told_to_choose_another_folder_without_the_refused_one_as_an_example(runs_of_another: Path):
    assert refusal(f"runs_dir={runs_of_another}", "name=b") == (
        f"runs_dir={runs_of_another} cannot be written (Permission denied: {runs_of_another}); set runs_dir to a "
        "folder that you may write to")


def test_games_that_this_user_may_not_read_are_a_mistake_of_their_own(
        runs_of_another: Path, monkeypatch: pytest.MonkeyPatch):
    games = runs_of_another / "games"
    (games / "json_2.1.1").mkdir(parents=True)
    games.chmod(0o700)
    monkeypatch.setenv("ALFWORLD_DATA", str(games))
    assert refusal(f"runs_dir={runs_of_another}", "name=b").splitlines() == [
        f"runs_dir={runs_of_another} cannot be written (Permission denied: {runs_of_another}); set runs_dir to a "
        "folder that you may write to",
        f"the ALFWorld games in {games} cannot be read (Permission denied: {games}/json_2.1.1); make them readable "
        "for this user, or set ALFWORLD_DATA or env.data to another folder"]


def test_a_file_system_of_the_kernel_is_refused_for_what_it_is_without_a_word_about_its_room(
        capsys: pytest.CaptureFixture[str]):
    """mkdir in /proc says `No such file or directory`, and its disk has 0 bytes."""
    with pytest.raises(UserError) as refused:
        preflight.check(load_config("alfworld-tiny", ["runs_dir=/proc/x"]))
    assert str(refused.value) == ("runs_dir=/proc/x cannot be written (no folder can be made there: /proc); set "
                                  "runs_dir to a folder that you may write to")
    assert capsys.readouterr().out == ""
