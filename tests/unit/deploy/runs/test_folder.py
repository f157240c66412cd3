"""Whose folder it is, and whether a run may start or go on in it."""

import json
from pathlib import Path

import pytest

from deploy.runs.configs import load_config
from deploy.runs.folder import check_run, differences, open_run, standing
from services.config.tree import Config
from services.errors import UserError

GAMES = "3 games of alfworld-gen (ab), own 1"


def config(folder: Path, **changes: object) -> Config:
    return Config.model_validate({"name": "r", "steps": 3, "runs_dir": folder, **changes})


def test_a_fresh_folder_gets_an_identity_and_the_resolved_config(tmp_path: Path):
    folder, run = open_run(config(tmp_path), games=GAMES, resume=False)
    assert folder.path == tmp_path / "r"
    assert run.startswith("r-")
    assert json.loads(folder.identity_file.read_text()) == {
        "format": 1, "run": run, "games": GAMES}
    assert load_config(folder.config_file) == config(tmp_path)


def test_two_runs_of_one_name_never_share_their_keys(tmp_path: Path):
    """The id prefixes the keys of a shared Redis; a folder that was deleted makes another run."""
    assert open_run(config(tmp_path / "a"), games=GAMES, resume=False)[1] != open_run(
        config(tmp_path / "b"), games=GAMES, resume=False)[1]


def test_resume_goes_on_under_the_same_id(tmp_path: Path):
    _, run = open_run(config(tmp_path), games=GAMES, resume=False)
    assert open_run(config(tmp_path), games=GAMES, resume=True)[1] == run


def test_resume_without_a_run_starts_one(tmp_path: Path):
    assert open_run(config(tmp_path), games=GAMES, resume=True)[1].startswith("r-")


def test_a_run_that_is_there_is_not_overwritten(tmp_path: Path):
    open_run(config(tmp_path), games=GAMES, resume=False)
    with pytest.raises(UserError, match=f"holds a run already; go on with it by `gagpo train --resume {tmp_path}/r`"):
        open_run(config(tmp_path), games=GAMES, resume=False)


@pytest.mark.parametrize("resume", [True, False])
def test_a_folder_of_another_config_is_refused(tmp_path: Path, resume: bool):
    folder, run = open_run(config(tmp_path), games=GAMES, resume=False)
    with pytest.raises(UserError, match="belongs to a run with another config"):
        open_run(config(tmp_path, seed=1), games=GAMES, resume=resume)
    assert json.loads(folder.identity_file.read_text())["run"] == run
    assert load_config(folder.config_file) == config(tmp_path)


@pytest.mark.parametrize(("changes", "may_go_on"), [
    ({"steps": 9}, True), ({"eval": {"every": 1}}, True), ({"checkpoint": {"keep": 5}}, True),
    ({"redis": {"url": "redis://elsewhere:1/0"}}, True), ({"rollout": {"workers": 4}}, True),
    ({"learner": {"ranks": 2}}, True), ({"env": {"urls": ("http://a:1",)}}, True),
    ({"rollout": {"temperature": 0.5}}, False),
    ({"learner": {"lr": 1.0}}, False), ({"env": {"max_steps": 7}}, False), ({"model": {"layers": 2}}, False),
    ({"sft": {"minutes": 9.0}}, False), ({"name": "s"}, False),
])
def test_how_far_and_where_may_change_but_not_what_is_learnt(tmp_path: Path, changes: dict, may_go_on: bool):
    assert (differences(config(tmp_path), config(tmp_path, **changes)) == []) == may_go_on


def test_a_refusal_lists_the_keys_that_differ_with_both_values(tmp_path: Path):
    open_run(config(tmp_path, learner={"lr": 1e-4}), games=GAMES, resume=False)
    with pytest.raises(UserError) as error:
        check_run(config(tmp_path, seed=1, steps=9, env={"alfworld": {"task_types": ["pick"]}}), resume=True)
    assert error.value.what == (
        f"{tmp_path / 'r'} belongs to a run with another config: seed is 0 there and 1 here, env.alfworld.task_types "
        "is [pick, look, clean, heat, cool, two] there and [pick] here, learner.lr is 0.0001 there and 1.0e-06 here")


def test_a_key_that_a_later_version_adds_does_not_stand_against_going_on(tmp_path: Path):
    folder, _ = open_run(config(tmp_path), games=GAMES, resume=False)
    text = folder.config_file.read_text()
    assert "seed: 0\n" in text
    folder.config_file.write_text(text.replace("seed: 0\n", ""))
    assert standing(config(tmp_path), resume=True) is None


def test_a_check_writes_nothing(tmp_path: Path):
    check_run(config(tmp_path), resume=False)
    assert not (tmp_path / "r").exists()


def test_a_folder_of_other_games_is_refused(tmp_path: Path):
    """The same config on generated and on official games: their results never mix."""
    open_run(config(tmp_path), games=GAMES, resume=False)
    with pytest.raises(UserError, match="was played on 3 games of alfworld-gen"):
        open_run(config(tmp_path), games="5 games of alfworld (cd)", resume=True)


def test_a_folder_of_another_version_of_the_environment_is_refused_in_one_line(tmp_path: Path):
    open_run(config(tmp_path), games=GAMES, resume=False)
    with pytest.raises(UserError) as error:
        open_run(config(tmp_path), games=f"{GAMES}+verl-compat", resume=True)
    assert str(error.value) == (
        f"{tmp_path / 'r'} was played on {GAMES}, and now there is {GAMES}+verl-compat; "
        "give this run another name (name=...), or the data and settings that it had")
