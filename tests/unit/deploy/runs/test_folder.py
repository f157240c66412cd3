"""The owner of a folder, and whether a run may start or continue in it."""

import json
import os
from itertools import permutations
from pathlib import Path

import pytest
import torch
from folder_holder import held_folder
from safetensors.torch import save_file

from deploy.runs.configs import lay_over, load_config
from deploy.runs.folder import RunFolder, check_run, differences, locked, open_run, standing
from deploy.runs.wanted import WantedNumbers, read_wanted, write_wanted
from learner.checkpoints.checkpoint import MIRROR
from learner.credit.registry import ESTIMATORS
from services.config.tree import Config
from services.errors import UserError
from services.files import open_as_folder
from services.telemetry.logs import configure_logs, get_logger

GAMES = "3 games of alfworld-gen (ab), own 1"


def config(folder: Path, **changes: object) -> Config:
    return lay_over(Config.model_validate({"name": "r", "steps": 3, "runs_dir": folder, **changes}), {})


def test_a_fresh_folder_gets_an_identity_and_the_resolved_config(tmp_path: Path):
    folder, run = open_run(config(tmp_path), games=GAMES, resume=False)
    assert folder.path == tmp_path / "r"
    assert run.startswith("r-")
    assert json.loads(folder.identity_file.read_text()) == {
        "format": 1, "run": run, "games": GAMES, "model": "", "code": {}}
    assert load_config(folder.config_file) == config(tmp_path)


def test_two_runs_of_one_name_never_share_their_keys(tmp_path: Path):
    """The id prefixes the keys of a shared Redis; a folder that was deleted makes another run."""
    assert open_run(config(tmp_path / "a"), games=GAMES, resume=False)[1] != open_run(
        config(tmp_path / "b"), games=GAMES, resume=False)[1]


def test_resume_goes_on_under_the_same_id(tmp_path: Path):
    _, run = open_run(config(tmp_path), games=GAMES, resume=False)
    assert open_run(config(tmp_path), games=GAMES, resume=True)[1] == run


def test_a_run_on_other_data_is_refused(tmp_path: Path):
    """Other data has the same task ids, and the version names it."""
    games = "40 games of quiz (ab), dataset 1+data-5f3a9c21"
    open_run(config(tmp_path), games=games, resume=False)
    with pytest.raises(UserError, match=r"was played on .*, and now there is"):
        open_run(config(tmp_path), games=games.replace("5f", "6f"), resume=True)


def test_resume_without_a_run_starts_one(tmp_path: Path):
    assert open_run(config(tmp_path), games=GAMES, resume=True)[1].startswith("r-")


def test_a_run_that_is_there_is_not_overwritten(tmp_path: Path):
    open_run(config(tmp_path), games=GAMES, resume=False)
    with pytest.raises(UserError, match=f"holds a run already; continue it by `gagpo train --resume {tmp_path}/r`"):
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
    ({"learner": {"token_budget": 64, "step_attempts": 9}}, True),
    ({"redis": {"url": "redis://elsewhere:1/0"}}, True), ({"redis": {"bodies": "s3://bucket"}}, False),
    ({"rollout": {"workers": 4}}, True),
    ({"learner": {"ranks": 2}}, True), ({"env": {"urls": ("http://a:1",)}}, True),
    ({"env": {"call_seconds": 600.0, "outage_seconds": 9.0}}, True), ({"hardware": "8x80"}, True),
    ({"rollout": {"start_seconds": 9.0, "sample_seconds": 9.0, "update_seconds": 9.0}}, True),
    ({"rollout": {"gpus": 1, "gpu_memory": 0.5}}, True), ({"weights": {"transfer": "host", "seconds": 9.0}}, True),
    ({"learner": {"checkpointing": True, "offload": True}}, True),
    ({"rollout": {"gpus": 1, "tensor_parallel": 2, "sleep": True}, "learner": {"gpus": 1}}, True),
    ({"prompting": {"trials": 9}}, True),
    ({"agent": {"seconds": 9.0}}, True), ({"agent": {"max_calls": 9}}, False),
    ({"rollout": {"temperature": 0.5}}, False),
    ({"learner": {"lr": 1.0}}, False), ({"env": {"max_steps": 7}}, False), ({"model": {"layers": 2}}, False),
    ({"sft": {"minutes": 9.0}}, False), ({"name": "s"}, False),
])
def test_how_far_and_where_may_change_but_not_what_is_learnt(tmp_path: Path, changes: dict, may_go_on: bool):
    assert (differences(config(tmp_path), config(tmp_path, **changes)) == []) == may_go_on


def test_one_folder_of_a_model_has_many_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    relative, absolute, other = (config(tmp_path, model={"path": path}) for path in ("m", tmp_path / "m", "n"))
    assert differences(relative, absolute) == []
    assert [line.split()[0] for line in differences(relative, other)] == ["model.path"]


def test_one_folder_of_a_teacher_has_many_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    relative, absolute, other = (config(tmp_path, learner={"distill": {"teacher": path}})
                                 for path in ("m", tmp_path / "m", "n"))
    assert differences(relative, absolute) == []
    assert [line.split()[0] for line in differences(relative, other)] == ["learner.distill.teacher"]


def test_a_change_of_the_estimator_is_named(tmp_path: Path):
    """Each config holds the options of its own estimator only."""
    configs = {name: config(tmp_path, learner={"credit": {"estimator": name}}) for name in ESTIMATORS}
    for there, here in permutations(ESTIMATORS, 2):
        found = differences(configs[there], configs[here])
        assert f"learner.credit.estimator is {there} there and {here} here" in found


def test_an_option_without_effect_may_be_added(tmp_path: Path):
    assert differences(config(tmp_path), config(tmp_path, learner={"credit": {"omega": 2.0}})) == []


def test_a_refusal_lists_the_keys_that_differ_with_both_values(tmp_path: Path):
    open_run(config(tmp_path, learner={"lr": 1e-4}), games=GAMES, resume=False)
    with pytest.raises(UserError) as error:
        check_run(config(tmp_path, seed=1, steps=9, env={"alfworld": {"task_types": ["pick"]}}), resume=True)
    assert error.value.what == (
        f"{tmp_path / 'r'} belongs to a run with another config: seed is 0 there and 1 here, env.alfworld.task_types "
        "is [pick, look, clean, heat, cool, two] there and [pick] here, learner.lr is 0.0001 there and 1.0e-06 here")


def test_the_critics_keys_differ_only_where_there_is_a_critic(tmp_path: Path):
    before = config(tmp_path, learner={"critic": {"lr": 1e-5}})
    assert differences(before, config(tmp_path)) == []
    assert differences(before, config(tmp_path, learner={"credit": {"estimator": "ppo"}}))[-1] == \
        "learner.critic.lr is 1.0e-05 there and null here"


def test_a_key_that_a_later_version_adds_does_not_stand_against_going_on(tmp_path: Path):
    folder, _ = open_run(config(tmp_path), games=GAMES, resume=False)
    text = folder.config_file.read_text()
    assert "seed: 0\n" in text
    folder.config_file.write_text(text.replace("seed: 0\n", ""))
    assert standing(config(tmp_path), resume=True) is None


def test_a_run_that_goes_on_has_at_least_the_steps_that_it_has_taken(tmp_path: Path):
    folder, _ = open_run(config(tmp_path, steps=40), games=GAMES, resume=False)
    check_run(config(tmp_path, steps=5), resume=True)  # it has no checkpoint yet
    for step in (8, 12):
        (folder.path / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
    with pytest.raises(UserError) as error:
        open_run(config(tmp_path, steps=5), games=GAMES, resume=True)
    assert str(error.value) == (f"steps=5 is fewer than the 12 that {tmp_path / 'r'} has taken; "
                                "steps counts from the beginning: give 17 for 5 more")
    assert load_config(folder.config_file).steps == 40
    open_run(config(tmp_path, steps=12), games=GAMES, resume=True)


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


@pytest.mark.attack
def test_a_folder_with_other_files_than_a_runs_is_never_written_to(tmp_path: Path):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "thesis.tex").write_text("years of work")
    for enter in (lambda: open_run(config(tmp_path), games=GAMES, resume=True), locked(config(tmp_path)).__enter__):
        with pytest.raises(UserError, match=r"holds other files than a run's, such as thesis.tex; give another name"):
            enter()
    assert [path.name for path in (tmp_path / "r").iterdir()] == ["thesis.tex"]


def test_a_run_that_was_scaled_before_it_had_begun_can_begin(tmp_path: Path):
    (tmp_path / "r").mkdir()
    write_wanted(RunFolder(tmp_path / "r"), WantedNumbers(rollout=2))
    open_run(config(tmp_path), games=GAMES, resume=False)
    assert read_wanted(RunFolder(tmp_path / "r")).rollout == 2


def test_the_second_process_learns_that_the_folder_is_taken_before_it_writes(tmp_path: Path):
    """In a process of its own, as `gagpo train` is; killed, it leaves no lock behind."""
    with held_folder(tmp_path):
        with pytest.raises(UserError, match=r"another process works in .*; wait"), locked(config(tmp_path)):
            pass
        assert [path.name for path in (tmp_path / "r").iterdir()] == [".lock"]
    with locked(config(tmp_path)):
        open_run(config(tmp_path), games=GAMES, resume=False)


@pytest.mark.attack
def test_a_run_is_its_owners_alone_unless_it_is_shared(tmp_path: Path):
    before = os.umask(0o022)
    try:
        for shared, folder_mode, file_mode in ((False, 0o700, 0o600), (True, 0o755, 0o644)):
            os.umask(0o022)
            folder, _ = open_run(config(tmp_path / str(shared), shared=shared), games=GAMES, resume=False)
            (folder.path / "later").write_text("")
            (folder.path / "below").mkdir()
            configure_logs(folder.path, show=None)
            get_logger("test").info("a line")
            save_file({"w": torch.zeros(1)}, folder.path / "below" / "model.safetensors")
            open_as_folder(folder.path / "below")
            modes = {path.name: path.stat().st_mode & 0o777 for path in [folder.path, *folder.path.rglob("*")]}
            assert modes == {"r": folder_mode, "below": folder_mode, **dict.fromkeys(
                ("run.json", "config.yaml", "later", "log.jsonl", "model.safetensors"), file_mode)}
    finally:
        os.umask(before)
        configure_logs(None, show=None)


@pytest.mark.parametrize("file", ["config.yaml", "run.json", MIRROR])
def test_a_start_that_was_killed_while_it_wrote_a_file_can_be_made_again(tmp_path: Path, file: str):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / f".{file}.4242.new").write_text("{")
    with locked(config(tmp_path)):
        open_run(config(tmp_path), games=GAMES, resume=False)


def test_a_start_that_a_full_disk_broke_off_can_be_made_again(tmp_path: Path):
    folder, _ = open_run(config(tmp_path), games=GAMES, resume=False)
    folder.identity_file.write_text("")
    assert open_run(config(tmp_path), games=GAMES, resume=True)[1].startswith("r-")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"run": 3}', "[" * 100_000, "\x00", '{"run": "r", "games": null}'])
def test_a_damaged_identity_beside_results_is_one_line(tmp_path: Path, text: str):
    folder, _ = open_run(config(tmp_path), games=GAMES, resume=False)
    folder.metrics.write_text("")
    folder.identity_file.write_text(text)
    with pytest.raises(UserError, match=r"run.json is damaged") as error:
        check_run(config(tmp_path), resume=True)
    assert "\n" not in str(error.value)


def test_a_place_that_takes_no_folder_is_one_line(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for runs_dir in (tmp_path / "file", tmp_path / ("n" * 300), Path("/proc/1")):
        with pytest.raises(UserError) as error:
            open_run(config(runs_dir), games=GAMES, resume=False)
        assert "\n" not in str(error.value)


def test_a_file_in_the_way_is_told_with_both_keys_that_lead_around_it(tmp_path: Path):
    """Another name is no way round a runs_dir that is a file."""
    (tmp_path / "taken").write_text("")
    with pytest.raises(UserError, match=r"taken/r is not a folder .*; give another name=\.\.\. or runs_dir=\.\.\."):
        check_run(config(tmp_path / "taken"), resume=False)
