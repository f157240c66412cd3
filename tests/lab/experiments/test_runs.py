"""Continuing an interrupted experiment, and the failures that end one. Failing runs are real processes."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from rich.console import Console

from deploy.runs.configs import load_config
from deploy.training.child_runs import Child, ChildFailed
from lab.experiments.credit import records
from lab.experiments.credit.common import place
from lab.experiments.credit.design import ARMS, PlannedRun, config_of, runs
from lab.experiments.credit.progress import RunsProgress
from lab.experiments.credit.records import ExperimentRecord, settings_of
from lab.experiments.credit.runs import Runner, RunsFailed, left, only_one, path_of
from services.config.file import dump_config, lay_over
from services.config.tree import Config
from services.errors import UserError
from services.telemetry.metrics_file import METRIC_KEYS, append_row

WANTED = runs(["gagpo", "gigpo"], range(2))
COMMON = {"cold_start": "c", "cold_evaluations": [], "panels": {}}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load_config("credit-experiment", [f"runs_dir={tmp_path / 'runs'}"])


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def keep(out: Path, run: PlannedRun, config: Config, record) -> ExperimentRecord:
    kept = replace(record(run.arm, run.seed, 0.5), settings=settings_of(config_of(run, config, cold_start="")))
    records.write(path_of(out, run), kept)
    return kept


def test_a_run_with_a_record_is_not_made_again(out: Path, config: Config, record):
    assert left(out, WANTED, config, COMMON) == WANTED
    keep(out, WANTED[1], config, record)
    assert [run.name for run in left(out, WANTED, config, COMMON)] == ["gagpo-seed0", "gagpo-seed1", "gigpo-seed1"]


def test_a_record_of_another_config_or_cold_start_is_refused(out: Path, config: Config, record):
    keep(out, WANTED[0], config, record)
    with pytest.raises(UserError, match=r"was made with steps=\d+, and now it is 3"):
        left(out, WANTED, lay_over(config, {"steps": 3}), COMMON)
    with pytest.raises(UserError, match="another cold start"):
        left(out, WANTED, config, COMMON | {"cold_start": "d"})


@pytest.mark.parametrize(("folder", "name", "laid"), [
    ("credit", "credit-experiment", []),
    ("credit-observation/weak", "credit-observation", ["sft.minutes=1.5"]),
    ("credit-observation/plateaued", "credit-observation", ["sft.minutes=20"]),
    ("credit-observation/long", "credit-observation",
     ["steps=54", "eval.every=18", "checkpoint.every=54", "sft.minutes=1.5"]),
    ("peers", "credit-observation", ["sft.minutes=1.5"]),
    ("peers/rlvmr", "credit-observation",
     ["sft.epochs=1", "env.prompt=compact-meta", "rollout.max_response_tokens=48"]),
])
def test_the_recorded_experiments_go_on_by_their_commands(folder: str, name: str, laid: list[str]):
    """Their records may be older than options of estimators, which had no other value then."""
    out, config = Path(__file__).parents[3] / "lab/experiments" / folder, load_config(name, laid)
    shared = json.loads((out / "experiment.json").read_text())
    records.same_settings(shared["settings"], config, where="experiment.json")
    found = records.read_records(out)
    made = [PlannedRun(seed=one.seed, arm=one.arm) for one in found if ARMS[one.arm].runnable]
    assert made
    assert left(out, made, config, {"cold_start": found[0].cold_start}) == []


def test_two_experiments_never_share_a_folder_for_their_runs(tmp_path: Path):
    with only_one(tmp_path), pytest.raises(UserError, match="another experiment"), only_one(tmp_path):
        pass
    with only_one(tmp_path):
        pass


def runner(config: Config, out: Path, said: list[str], **more) -> Runner:
    progress = RunsProgress(len(WANTED), console=Console(file=Lines(said)))
    return Runner(config=config, out=out, common=dict(COMMON), progress=progress, **more)


class Lines:
    """A file that keeps the written lines."""

    def __init__(self, said: list[str]) -> None:
        self.said = said

    def write(self, text: str) -> None:
        self.said.append(text)

    def flush(self) -> None:
        pass


class OneArmFails(Child):
    """A child that ends at once: with status 0 beside the files of a finished run, or with 2 for the arm gagpo."""

    def __init__(self, name: str, arguments: Sequence[str], *, log: Path, leave_s: float,
                 secrets: Mapping[str, str]) -> None:
        fails = name.startswith("gagpo")
        super().__init__(name, ["train", "--config", "nowhere"] if fails else ["--help"], log=log,
                         leave_s=leave_s, secrets=secrets)
        if not fails:
            folder = log.parent / name
            folder.mkdir(parents=True, exist_ok=True)
            append_row(folder / "metrics.jsonl", dict.fromkeys(METRIC_KEYS, 0.5) | {"step": 1, "version": "1.1"})
            append_row(folder / "evaluations.jsonl", {
                "label": "panel-trained", "step": 1, "split": "heldout", "temperature": 1.0, "tasks": 1, "dropped": 0,
                "success_rate": 1.0, "episode_length": 2.0, "success_by_type": {}, "success_by_task": {"a": 1.0}})


def test_three_failures_in_a_row_end_the_experiment_with_the_last_lines_of_each(
        out: Path, config: Config, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lab.experiments.credit.runs.Child", OneArmFails)
    four = runs(["gagpo"], range(4))
    with pytest.raises(RunsFailed) as caught:
        runner(config, out, []).make(four)
    assert [str(failure).split(";")[0] for failure in caught.value.failures] == [
        f"{run.name} ended with status 2" for run in four[:3]]
    assert all("there is no config file nowhere" in failure.tail[-1] for failure in caught.value.failures)
    assert not list(out.iterdir())
    assert not (config.run_dir / f"{four[3].name}.yaml").exists()


def test_a_failed_run_leaves_the_others_to_finish_and_is_named_at_the_end(
        out: Path, config: Config, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lab.experiments.credit.runs.Child", OneArmFails)
    said: list[str] = []
    made = runner(config, out, said)
    made.common = COMMON | {"cold_evaluations": [{"label": "known"}], "panels": {"heldout": ["a"]}}
    with pytest.raises(RunsFailed, match="2 runs failed: gagpo-seed0, gagpo-seed1") as caught:
        made.make(WANTED)
    assert [record.arm for record in records.read_records(out)] == ["gigpo", "gigpo"]
    assert str(config.run_dir / "gagpo-seed1.log") in str(caught.value.failures[1])
    assert "gagpo-seed0 failed" in "".join(said)


def test_after_its_hours_no_run_is_started(out: Path, config: Config):
    assert runner(config, out, [], hours=0).make(WANTED) == len(WANTED)
    assert not config.run_dir.exists()


class FirstGoesOn(OneArmFails):
    """The run gigpo-seed0 finishes only once three others have failed."""

    failed: ClassVar[list[str]] = []

    def ended(self, deadline_s: float | None = None) -> bool:
        if self.name == "gigpo-seed0" and len(self.failed) < 3:
            return False
        try:
            return super().ended(deadline_s)
        except ChildFailed:
            self.failed.append(self.name)
            raise


def test_after_three_failures_no_run_is_started_and_those_that_go_on_are_finished(
        out: Path, config: Config, monkeypatch: pytest.MonkeyPatch):
    """A cause that hits new starts alone, such as a port that the first run has, lost the work of the first run."""
    monkeypatch.setattr(FirstGoesOn, "failed", [])
    made = finished(config, out, monkeypatch, FirstGoesOn)
    made.parallel = 2
    with pytest.raises(RunsFailed, match="3 runs failed"):
        made.make([PlannedRun(arm="gigpo", seed=0), *runs(["gagpo"], range(4))])
    assert [(record.arm, record.seed) for record in records.read_records(out)] == [("gigpo", 0)]


def test_a_run_that_somebody_goes_on_with_by_hand_keeps_its_folder(out: Path, config: Config):
    made = runner(config, out, [])
    run_config = made._config(WANTED[0])
    code = ("import sys, time; from deploy.runs.configs import load_config; from deploy.runs.folder import locked\n"
            "with locked(load_config(sys.argv[1], [])):\n print('held', flush=True)\n time.sleep(600)")
    dump_config(run_config, out / "run.yaml")
    command = [sys.executable, "-c", code, str(out / "run.yaml")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout.readline() == "held\n"
            (run_config.run_dir / "mine").touch()
            with pytest.raises(UserError):
                made.make([WANTED[0]])
            assert (run_config.run_dir / "mine").exists()
        finally:
            other.kill()


class FourHours(OneArmFails):
    """A run that has lasted for four hours."""

    @property
    def seconds(self) -> float:
        return 4 * 3600.0


def finished(config: Config, out: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Child],
             said: list[str] | None = None) -> Runner:
    """A runner whose runs of GiGPO finish."""
    monkeypatch.setattr("lab.experiments.credit.runs.Child", kind)
    made = runner(config, out, [] if said is None else said)
    made.common = COMMON | {"cold_evaluations": [{"label": "known"}], "panels": {"heldout": ["a"]}}
    return made


def test_a_run_may_last_as_long_as_its_config_asks_for(out: Path, config: Config, monkeypatch: pytest.MonkeyPatch):
    finished(config, out, monkeypatch, FourHours).make(runs(["gigpo"], [0]))
    assert [record.minutes for record in records.read_records(out)] == [240.0]


def test_a_record_waits_for_a_folder_that_cannot_be_written(out: Path, config: Config, monkeypatch: pytest.MonkeyPatch):
    """A folder stands where its draft should be until that is told. The run would have been made again from its start.
    """
    (run,) = runs(["gigpo"], [0])
    draft = out / f".{run.name}.json.{socket.gethostname()}-{os.getpid()}.new"
    draft.mkdir()

    class Freeing(list[str]):
        def append(self, text: str) -> None:
            if "could not be written" in text:
                draft.rmdir()

    finished(config, out, monkeypatch, OneArmFails, Freeing()).make([run])
    assert [record.arm for record in records.read_records(out)] == ["gigpo"]


def test_a_copy_of_the_cold_start_that_is_cut_short_counts_as_none(tmp_path: Path):
    """A link to nowhere cannot be copied. What is marked as complete by sft.json would have been taken as whole."""
    draft, model = tmp_path / "draft", tmp_path / "cold-start"
    draft.mkdir()
    (draft / "sft.json").write_text("{}")
    (draft / "model.safetensors").symlink_to("nowhere")
    with pytest.raises(shutil.Error):
        place(draft, model)
    assert not model.exists()
    (draft / "model.safetensors").unlink()
    (draft / "model.safetensors").write_text("weights")
    place(draft, model)
    assert {path.name for path in model.iterdir()} == {"model.safetensors", "sft.json"}
    assert {path.name for path in tmp_path.iterdir()} == {"draft", "cold-start"}
