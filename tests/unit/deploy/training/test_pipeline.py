"""The steps that a run evaluates."""

import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from counter import SPEC

from deploy.console.progress import ProgressView
from deploy.launch.planning.task_sets import TaskSets
from deploy.runs.folder import RunFolder
from deploy.runs.history import RunHistory
from deploy.runs.policies import find_checkpoint
from deploy.training.pipeline import TrainingRun
from learner.checkpoints.checkpoint import Checkpoints, Position
from learner.cold_start.sft_data import DEMONSTRATIONS
from services.config.sections import ImitationSection
from services.config.tree import Config
from services.controller.telemetry import Telemetry
from services.errors import DeadlineExceeded
from services.records import Version
from services.store.archive import EpisodeArchive
from services.telemetry.evaluations import COLD, MORE, TRAINED
from services.telemetry.metrics_file import append_row, read_evaluations


@pytest.fixture
def training(tmp_path: Path) -> TrainingRun:
    """Provides a run that evaluates every third of seven steps, and the last."""
    config = Config.model_validate({"name": "t", "steps": 7, "runs_dir": tmp_path, "eval": {"every": 3}})
    task_sets = TaskSets(env_name="toy", engine="corridor 1", train=("toy/train/0",), validation=("toy/valid/0",),
                         validation_split="valid", heldout=(), heldout_split="test", heldout_digest="", games="",
                         environment=SPEC.open(config.env))
    return TrainingRun(config=config, folder=RunFolder(tmp_path), run="t-1", task_sets=task_sets,
                       progress=ProgressView("t", 7))


def due(training: TrainingRun) -> list[int]:
    versions = [Version(incarnation=1, step=step) for step in range(8)]
    return [request.version.step for request in map(training.evaluation_of, versions) if request is not None]


@pytest.mark.parametrize(("steps", "said"), [
    ((), "there is no checkpoint yet"), ((2,), "the newest checkpoint is of learner step 2")])
def test_a_run_that_is_asked_to_end_tells_its_newest_checkpoint(
        training: TrainingRun, steps: tuple[int, ...], said: str, capsys: pytest.CaptureFixture[str]):
    """It named one of learner step 0, which nobody could export."""
    for step in steps:
        checkpoints = Checkpoints(training.folder.path / "checkpoints", keep=1)
        checkpoints.draft(step)
        checkpoints.commit(Position(step=step, incarnation=1, next_group=step, trained=step))
    learner = SimpleNamespace(leave=lambda _: None)
    parts = SimpleNamespace(learner=lambda _: learner, supervisor=SimpleNamespace(add=lambda _: None))

    def ends(_: object) -> None:
        raise SystemExit(143)

    with pytest.raises(SystemExit):
        training.train(parts, SimpleNamespace(resume=lambda _: None, run=ends), training.folder.path)
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(("asked", "seconds", "said"), [
    (SystemExit(143), 20.0, "(about 50 s) and writes a checkpoint; waits up to 20 s, supervision.leave_seconds"),
    (KeyboardInterrupt(), 1800.0, "(about 50 s) and writes a checkpoint; Ctrl-C again ends at once")])
def test_ctrl_c_waits_for_the_step_and_sigterm_for_as_long_as_its_sender_does(
        training: TrainingRun, asked: BaseException, seconds: float, said: str, capsys: pytest.CaptureFixture[str]):
    """Ctrl-C lost a step of 50 s, and all steps since the last checkpoint."""
    append_row(training.folder.metrics, {"step": 1, "seconds/wait": 99.0, "seconds/evaluation": 9.0,
                                         "seconds/forward_backward": 48.0, "seconds/optimizer": 2.0})
    waits: list[float] = []
    parts = SimpleNamespace(learner=lambda _: SimpleNamespace(leave=waits.append),
                            supervisor=SimpleNamespace(add=lambda _: None))

    def ends(_: object) -> None:
        raise asked

    with pytest.raises(type(asked)):
        training.train(parts, SimpleNamespace(resume=lambda _: None, run=ends), training.folder.path)
    assert waits == [seconds]
    assert said in capsys.readouterr().out


def test_a_step_longer_than_sigterm_leaves_is_told_while_the_run_goes_on(
        training: TrainingRun, capsys: pytest.CaptureFixture[str]):
    history, telemetry = RunHistory(training.folder), Telemetry()
    row = {"success_rate": 0.5, "episode_length": 9.0, "seconds/wait": 99.0}
    for step, seconds in ((1, 19.0), (2, 50.0), (3, 50.0)):
        append_row(training.folder.metrics, row | {"step": step, "seconds/forward_backward": seconds})
        training.warn(history, telemetry)
    (line,) = capsys.readouterr().out.splitlines()
    assert "warning: a learner step trains for 50 s, and SIGTERM leaves it 20 s: " in line
    assert "Set supervision.leave_seconds=70, " in line


def test_a_score_may_be_recorded_once_the_weights_are_on_disk(training: TrainingRun):
    """Evaluated: 0, 3, 6 and the last. Step 3 has its weights alone, the last a checkpoint. The policy that RL starts
    from needs none."""
    assert due(training) == [0, 3, 6, 7]
    checkpoints = Checkpoints(training.folder.path / "checkpoints", keep=1)

    def kept() -> list[int]:
        return [step for step in due(training) if training.weights_kept(Version(incarnation=1, step=step))]

    found = [kept()]
    for step, commit in ((3, checkpoints.commit_weights), (7, checkpoints.commit)):
        checkpoints.draft(step)
        found.append(kept())
        commit(Position(step=step, incarnation=1, next_group=step, trained=step))
        checkpoints.record_score(step, 1 / step)
        found.append(kept())
    assert found == [[0], [0], [0, 3], [0, 3], [0, 3, 7]]


ROW = {"label": "panel-trained", "step": 7, "temperature": 1.0, "split": "test", "tasks": 1, "dropped": 0,
       "episodes": 1, "success_rate": 1.0, "success_low": 1.0, "success_high": 1.0,
       "success_by_task": {"toy/test/0": 1.0}}


def hasty(training: TrainingRun) -> TrainingRun:
    """The same run, which hardly waits for its folder."""
    config = Config.model_validate({"name": "t", "steps": 7, "learner": {"collective_s": 0.01}})
    return replace(training, config=config)


def test_a_score_waits_for_a_folder_that_cannot_be_written(training: TrainingRun):
    """A folder stands where the file should be, so that opening it raises OSError, until it is removed."""
    archive = EpisodeArchive(training.folder.path / "episodes")
    training.folder.evaluations.mkdir()
    threading.Timer(0.3, training.folder.evaluations.rmdir).start()
    training.keep_evaluation(dict(ROW), [], archive)
    assert [row["success_rate"] for row in read_evaluations(training.folder.evaluations)] == [1.0]


def test_a_score_that_cannot_be_written_in_time_names_its_file_and_the_key(training: TrainingRun):
    archive = EpisodeArchive(training.folder.path / "episodes")
    training.folder.evaluations.mkdir()
    with pytest.raises(DeadlineExceeded, match=r"evaluations\.jsonl could not be written for 0\.01 s .*collective_s"):
        hasty(training).keep_evaluation(dict(ROW), [], archive)


def test_evaluations_and_the_summary_say_which_version_of_which_environment_played(training: TrainingRun):
    training.folder.config_file.write_text("name: t\n")
    training.folder.identity_file.write_text("{}")
    training.keep_evaluation(dict(ROW), [], EpisodeArchive(training.folder.path / "episodes"))
    (kept,) = read_evaluations(training.folder.evaluations)
    assert (kept["env"], kept["engine"]) == ("toy", "corridor 1")
    training.report()
    assert json.loads(training.folder.summary.read_text())["engine"] == "corridor 1"
    assert "<th>engine</th><td>corridor 1</td>" in (training.folder.path / "report.html").read_text()


def evaluated(step: int, wins: int, temperature: float = 0.4) -> dict[str, Any]:
    """Returns the row of an evaluation of a hundred games, of which the first `wins` are won."""
    return {"label": f"step-{step:06d}", "step": step, "success_rate": wins / 100, "split": "valid",
            "temperature": temperature, "success_by_task": {f"game-{i}": float(i < wins) for i in range(100)}}


def test_the_warnings_that_hold_now_are_exported_for_the_alerts(training: TrainingRun):
    """The rows of this run alone count, and the last evaluation is at another temperature."""
    history, telemetry = RunHistory(training.folder), Telemetry()
    found = []
    for row in (evaluated(0, 40), evaluated(3, 90), evaluated(6, 60), evaluated(7, 50, temperature=1.0)):
        append_row(training.folder.evaluations, row)
        training.warn(history, telemetry)
        found.append([labels["rule"] for _, labels, value in
                      telemetry.heartbeat.meters.snapshot()["gagpo_health_warning"] if value])
    assert found == [[], [], ["success"], []]


def test_more_cold_start_is_compared_only_after_a_cold_start(training: TrainingRun):
    """Without one nothing may be able to show the environment's games: it may have no scripted player."""
    task_sets = replace(training.task_sets, heldout=("toy/test/0",))
    played = {}
    for enabled in (True, False):
        config = Config.model_validate({"name": "t", "steps": 7, "sft": {"enabled": enabled},
                                        "eval": {"compare_cold_start": True, "panel_temperatures": [1.0]}})
        played[enabled] = replace(training, config=config, task_sets=task_sets).unplayed()
    assert played == {True: {COLD: [1.0], TRAINED: [1.0], MORE: [1.0]}, False: {COLD: [1.0], TRAINED: [1.0]}}


def test_a_reader_finds_the_whole_old_summary_or_the_whole_new_one(training: TrainingRun):
    training.folder.config_file.write_text("name: t\n")
    training.folder.identity_file.write_text("{}")
    training.folder.summary.write_text("the old one")
    with training.folder.summary.open() as reader:
        training.report()
        assert reader.read() == "the old one"
    assert json.loads(training.folder.summary.read_text())["format"] == 1


def test_a_score_outlives_a_kill_before_its_line_is_written(training: TrainingRun):
    """Without a line the evaluation is played again. Without a score its checkpoint, perhaps the best, is deleted."""
    checkpoints = Checkpoints(training.folder.path / "checkpoints", keep=1)
    checkpoints.draft(3)
    checkpoints.commit(Position(step=3, incarnation=1, next_group=3, trained=3))
    training.folder.evaluations.mkdir()  # its first line cannot be written
    with pytest.raises(DeadlineExceeded):
        hasty(training).keep_evaluation(
            {"label": "step-000003", "step": 3, "split": "valid", "temperature": 0.4, "success_rate": 0.5}, [],
            EpisodeArchive(training.folder.path / "episodes"))
    assert checkpoints.best() == 3


def test_a_run_goes_on_from_a_whole_checkpoint_without_evaluations_of_lost_weights(training: TrainingRun):
    checkpoints = Checkpoints(training.folder.path / "checkpoints", keep=9)
    for step in (3, 6):
        (checkpoints.draft(step) / "w").write_text("weights")
        checkpoints.commit(Position(step=step, incarnation=1, next_group=step, trained=step))
    for step in (0, 3, 6):
        append_row(training.folder.evaluations, {
            "label": f"step-{step:06d}", "step": step, "temperature": 0.4, "success_rate": 0.5})
    (checkpoints.folder(6) / "w").write_text("wEights")
    training._settle()
    assert checkpoints.steps() == [3]
    assert [row["step"] for row in read_evaluations(training.folder.evaluations)] == [0, 3]


def test_a_run_that_goes_back_has_the_best_of_the_steps_that_it_keeps(training: TrainingRun):
    """The checkpoint of step 4 is the newest. Step 6, whose weights alone are on disk, was better than step 3, and is
    taken again, perhaps with other weights. Step 2 was better still, and its weights are gone."""
    checkpoints = Checkpoints(training.folder.path / "checkpoints", keep=1)
    for step, score in ((2, 0.9), (3, 0.5), (4, 0.4), (6, 0.8)):
        checkpoints.draft(step)
        position = Position(step=step, incarnation=1, next_group=step, trained=step)
        (checkpoints.commit if step == 4 else checkpoints.commit_weights)(position)
        if step == 3:
            shutil.rmtree(checkpoints.weights_folder(2))
        checkpoints.record_score(step, score, ("valid", 0.4))
        append_row(training.folder.evaluations, {"label": f"step-{step:06d}", "step": step, "split": "valid",
                                                 "temperature": 0.4, "success_rate": score})
    assert checkpoints.best() == 6
    training._settle()
    assert [row["step"] for row in read_evaluations(training.folder.evaluations)] == [2, 3, 4]
    assert checkpoints.best() == 3
    assert find_checkpoint(training.folder, "best") == (3, checkpoints.root / "weights-00000003" / "hf")


def test_evaluations_of_lost_weights_are_dropped_once_the_folder_is_back(training: TrainingRun):
    """A link to itself cannot be read, as a file of a shared folder that is away."""
    file = training.folder.evaluations
    for step in (0, 3):
        append_row(file, {"label": f"step-{step:06d}", "step": step, "temperature": 0.4, "success_rate": 0.5})
    aside = file.rename(training.folder.path / "aside")
    file.symlink_to(file)
    threading.Timer(0.3, aside.rename, [file]).start()
    training._settle()
    assert [row["step"] for row in read_evaluations(file)] == [0]
    aside = file.rename(aside)
    file.symlink_to(file)
    with pytest.raises(DeadlineExceeded, match=r"evaluations\.jsonl could not be written for 0\.01 s .*collective_s"):
        hasty(training)._settle()


def test_a_run_that_goes_on_with_fewer_steps_than_it_has_taken_has_the_policy_of_its_last_one(training: TrainingRun):
    checkpoints = Checkpoints(training.folder.path / "checkpoints", keep=1)
    checkpoints.draft(7)
    checkpoints.commit(Position(step=7, incarnation=1, next_group=7, trained=7))
    append_row(training.folder.evaluations, ROW)
    fewer = Config.model_validate({"name": "t", "steps": 5, "runs_dir": training.config.runs_dir,
                                   "eval": {"panel_temperatures": [1.0]}})
    task_sets = replace(training.task_sets, heldout=("toy/test/0",))
    assert replace(training, config=fewer, task_sets=task_sets).unplayed() == {COLD: [1.0]}


def test_a_table_of_fewer_episodes_a_game_than_the_config_now_asks_for_is_played_again(training: TrainingRun):
    for label, step in ((COLD, 0), (TRAINED, 7)):
        append_row(training.folder.evaluations, ROW | {"label": label, "step": step})
    left = {}
    for samples in (1, 8):
        config = Config.model_validate({"name": "t", "steps": 7, "sft": {"enabled": False}, "eval": {
            "panel_temperatures": [1.0], "panel_samples": samples}})
        left[samples] = replace(training, config=config,
                                task_sets=replace(training.task_sets, heldout=("toy/test/0",))).unplayed()
    assert left == {1: {}, 8: {COLD: [1.0], TRAINED: [1.0]}}


def test_demonstrations_are_played_once_and_only_to_be_imitated(training: TrainingRun):
    """A later life of the run imitates the rows of the first. Here nothing could be played: there is no model."""
    file = training.folder.path / DEMONSTRATIONS
    training.demonstrate(Path("absent"))
    assert not file.exists()
    learner = training.config.learner.model_copy(update={"imitation": ImitationSection(weight=0.5)})
    imitating = replace(training, config=training.config.model_copy(update={"learner": learner}))
    file.write_bytes(b"rows")
    imitating.demonstrate(Path("absent"))
    assert file.read_bytes() == b"rows"
