"""The paper's ablation table as one command: its rows, what they share, and the numbers."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from deploy.runs.configs import load_config
from deploy.runs.folder import RunFolder, check_run, open_run
from deploy.training import sweep
from deploy.training.child_runs import ChildFailed
from deploy.training.sweep import ABLATIONS, SWEEPS, Variant
from services.config.file import dump_config, lay_over
from services.config.tree import Config
from services.errors import UserError
from services.telemetry.metrics_file import append_row, read_rows


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load_config("alfworld-tiny", [f"runs_dir={tmp_path}", "name=swept"])


def write(folder: RunFolder, label: str, step: int, by_task: dict[str, float], temperature: float = 1.0) -> None:
    folder.path.mkdir(parents=True, exist_ok=True)
    append_row(folder.evaluations, {"label": label, "step": step, "temperature": temperature, "split": "heldout",
                                    "tasks": len(by_task), "episodes": len(by_task), "success_rate": 0.5,
                                    "success_by_task": by_task})


def test_the_rows_of_the_papers_table(config: Config):
    """Each differs from the first in the keys of its open decision and in no other."""
    made = sweep.configs(config, ABLATIONS)
    laid = {name: (one.learner.credit.lam, one.learner.loss.ratio, one.learner.loss.aggregation,
                   one.learner.credit.broadcast, one.learner.credit.normalize) for name, one in made.items()}
    assert laid == {
        "full": (0.8, "sequence", "actions", 0.0, "group"),
        "no-temporal": (0.0, "sequence", "actions", 0.0, "group"),
        "monte-carlo": (1.0, "sequence", "actions", 0.0, "group"),
        "token-ratio": (0.8, "token", "tokens", 0.0, "group"),
        "trajectory-reward": (0.8, "sequence", "actions", 1.0, "group"),
        "batch-norm": (0.8, "sequence", "actions", 0.0, "batch"),
        "no-norm": (0.8, "sequence", "actions", 0.0, "none"),
    }


def test_all_start_from_the_cold_start_that_the_first_makes(
        config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = list(sweep.configs(config, ABLATIONS).values())
    assert (made[0].sft.enabled, made[0].model.path) == (True, None)
    cold = tmp_path / "swept" / "full" / "model-cold-start"
    assert {(one.sft.enabled, one.model.path) for one in made[1:]} == {(False, cold)}
    assert {one.run_dir.parent for one in made} == {tmp_path / "swept"}
    monkeypatch.chdir(tmp_path)
    relative = list(sweep.configs(lay_over(config, {"runs_dir": "."}), ABLATIONS).values())
    assert {one.model.path for one in relative[1:]} == {cold}, "a variant may be resumed from another folder"
    assert {one.seed for one in made} == {config.seed}


def test_each_sweep_has_copies_of_its_own_in_an_object_store(tmp_path: Path):
    """A run finds its copy by storage.url and its name, and the variants of all sweeps have the same names."""
    laid = [f"runs_dir={tmp_path}", "name=first", "storage.url=s3://bucket/runs/"]
    made = sweep.configs(load_config("alfworld-tiny", laid), ABLATIONS)
    assert {one.storage.url for one in made.values()} == {"s3://bucket/runs/first"}


def test_a_given_model_is_where_all_start(tmp_path: Path):
    given = load_config("alfworld-tiny", [f"runs_dir={tmp_path}", "sft.enabled=false", f"model.path={tmp_path}"])
    assert {one.model.path for one in sweep.configs(given, ABLATIONS).values()} == {tmp_path}


@pytest.mark.parametrize(("laid", "what"), [
    (["learner.credit.estimator=grpo"], "gamma0.95-lambda0.8 sets learner.credit.gamma, and estimator grpo does"),
    (["learner.credit.estimator=gigpo"], "gamma0.95-lambda0.8 sets learner.credit.lam, and estimator gigpo does"),
    (["eval.every=0", "eval.panel=0"], "asks for none")])
def test_variants_that_cannot_be_compared_are_refused(tmp_path: Path, laid: list[str], what: str):
    config = load_config("alfworld-tiny", [f"runs_dir={tmp_path}", *laid])
    with pytest.raises(UserError, match=what):
        sweep.configs(config, SWEEPS["table3"](config))


def test_a_folder_of_a_single_run_is_refused(config: Config):
    open_run(config, games="g", resume=False)
    with pytest.raises(UserError, match="holds a single run"):
        sweep.configs(config, ABLATIONS)


def test_gains_of_a_sweep_are_paired_by_game(config: Config):
    """Paired over games a and b alone: c was lost to a fault in the second run. Gains 1 and 0: mean .5,
    and two such gains leave any mean possible."""
    made = sweep.configs(config, ABLATIONS[:2])
    full, second = (RunFolder(one.run_dir) for one in made.values())
    write(full, "step-000030", 30, {"v": 1.0})
    write(full, "panel-trained", 30, {"a": 0.0, "b": 1.0, "c": 1.0})
    write(second, "panel-trained", 30, {"a": 1.0, "b": 1.0})
    first, other = sweep.table(made, ABLATIONS[:2])
    assert (first.variant, first.success, first.games, first.gain) == ("full", pytest.approx(2 / 3), 3, None)
    assert (other.variant, other.success, other.games, other.gain) == ("no-temporal", 1.0, 2, 0.5)
    assert (other.gain_low, other.gain_high) == (-1.0, 1.0)
    assert len(sweep.as_text([first, other], []).splitlines()) == 3


def test_where_faults_left_no_game_on_both_sides_of_a_sweep_there_is_no_gain(config: Config):
    made = sweep.configs(config, ABLATIONS[:2])
    for one, game in zip(made.values(), "ab", strict=True):
        write(RunFolder(one.run_dir), "panel-trained", 30, {game: 1.0})
    lines = sweep.table(made, ABLATIONS[:2])
    assert [(line.games, line.gain) for line in lines] == [(1, None), (1, None)]
    assert len(sweep.as_text(lines, []).splitlines()) == 3


def test_without_a_panel_the_end_of_the_curve_counts(tmp_path: Path):
    folder = RunFolder(tmp_path)
    for step, value in ((20, 0.5), (0, 0.0), (10, 0.2)):
        write(folder, f"step-{step:06d}", step, {"a": value})
    assert [row["step"] for row in sweep.final(folder)] == [20]
    write(folder, "panel-trained", 10, {"a": 1.0})  # before the run went on to step 20
    assert [row["step"] for row in sweep.final(folder)] == [20]


def test_a_run_is_told_once_how_its_cold_start_did(tmp_path: Path):
    first, second = RunFolder(tmp_path / "first"), RunFolder(tmp_path / "second")
    for label, step in (("step-000000", 0), ("step-000010", 10), ("panel-cold", 0), ("panel-trained", 10)):
        write(first, label, step, {"a": 1.0})
    for _ in range(2):
        sweep.give_evaluations(second, sweep.cold_evaluations(first))
    assert [(row["label"], row["given"]) for row in read_rows(second.evaluations)] == [
        ("step-000000", True), ("panel-cold", True)]


def finish(config: Config, by_task: dict[str, float]) -> None:
    folder, _ = open_run(config, games="g", resume=False)
    dump_config(config, folder.config_file)
    folder.summary.write_text("{}")
    write(folder, "panel-trained", 30, by_task)


def written(config: Config) -> list[dict[str, Any]]:
    return json.loads((config.run_dir / "sweep.json").read_text())["table"]


def test_a_failed_variant_leaves_the_others_to_go_on_and_stays_out_of_the_table(config: Config):
    """The second finds no cold start and ends with its one line, but has an evaluation. The third has finished."""
    variants = (*ABLATIONS[:2], Variant(name="g0.9-l0.5", title="other", overrides={"learner.credit.lam": 0.5}))
    made = sweep.configs(config, variants)
    finish(made["full"], {"a": 1.0})
    finish(made["g0.9-l0.5"], {"a": 0.0})
    write(RunFolder(made["no-temporal"].run_dir), "step-000010", 10, {"a": 1.0})
    swept = sweep.run_sweep(config, variants, quiet=True)
    assert [variant.name for variant in swept.finished] == ["full", "g0.9-l0.5"]
    assert [(line["variant"], line["gain"]) for line in written(config)] == [("full", None), ("g0.9-l0.5", -1.0)]
    (failure,) = swept.failures
    assert "variant no-temporal ended with status 2; continue with --resume" in str(failure)
    assert "no-temporal" not in (config.run_dir / "sweep.txt").read_text()


def test_three_failures_in_a_row_end_a_sweep(config: Config):
    finish(sweep.configs(config, ABLATIONS)["full"], {"a": 1.0})
    swept = sweep.run_sweep(config, ABLATIONS, quiet=True)
    assert [str(failure).split()[1] for failure in swept.failures] == ["no-temporal", "monte-carlo", "token-ratio"]
    assert not (config.run_dir / "trajectory-reward.yaml").exists()


def test_an_interrupted_sweep_has_the_table_of_the_runs_that_finished(config: Config, monkeypatch: pytest.MonkeyPatch):
    made = sweep.configs(config, ABLATIONS)

    def ends_with_ctrl_c_in_the_second(name: str, *_: object, **__: object) -> None:
        if name != "variant full":
            raise KeyboardInterrupt
        finish(made["full"], {"a": 1.0})

    monkeypatch.setattr(sweep, "run_child", ends_with_ctrl_c_in_the_second)
    with pytest.raises(KeyboardInterrupt):
        sweep.run_sweep(config, ABLATIONS, quiet=True)
    assert [row["variant"] for row in written(config)] == ["full"]


def test_without_the_first_variant_there_is_no_cold_start_to_go_on_with(
        config: Config, monkeypatch: pytest.MonkeyPatch):
    def fails(name: str, *_: object, **__: object) -> None:
        raise ChildFailed(f"{name} failed", 3)

    monkeypatch.setattr(sweep, "run_child", fails)
    swept = sweep.run_sweep(config, ABLATIONS, quiet=True)
    assert [(str(one), one.status) for one in swept.failures] == [("variant full failed; continue with --resume", 3)]
    assert not (config.run_dir / "sweep.json").exists()


def test_without_resume_a_sweep_that_has_begun_is_refused(config: Config):
    made = sweep.configs(config, ABLATIONS)
    open_run(made["full"], games="g", resume=False)
    with pytest.raises(UserError, match=r"swept holds runs of a sweep already; continue it by .* --resume"):
        sweep.check_folders(config, made, resume=False)
    sweep.check_folders(config, made, resume=True)


@pytest.mark.parametrize("relative", [True, False])
def test_a_sweep_goes_on_in_a_folder_that_was_moved(
        config: Config, relative: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The variants begin with the first one's cold start, by its absolute path, which moves with them."""
    for place in ("before", "now"):
        (tmp_path / place).mkdir()
    monkeypatch.chdir(tmp_path / "before")
    begun = lay_over(config, {"runs_dir": "." if relative else str(tmp_path / "before")})
    full, second, *_ = sweep.configs(begun, ABLATIONS).values()
    finish(full, {"a": 1.0})
    finish(second, {"a": 0.0})
    (tmp_path / "before" / "swept").rename(tmp_path / "now" / "swept")
    monkeypatch.chdir(tmp_path / "now")
    made = sweep.configs(lay_over(begun, {"runs_dir": "." if relative else str(tmp_path / "now")}), ABLATIONS)
    sweep.check_folders(config, made, resume=True)
    assert [name for name, one in made.items() if sweep.is_finished(one)] == ["full", "no-temporal"]
    other = lay_over(made["no-temporal"], {"model.path": "/models/full/model-cold-start"})
    with pytest.raises(UserError, match=r"model\.path is"):
        check_run(other, resume=True)


def test_more_steps_are_not_finished(config: Config):
    open_run(config, games="g", resume=False)
    RunFolder(config.run_dir).summary.write_text("{}")
    assert sweep.is_finished(config)
    assert not sweep.is_finished(config.model_copy(update={"steps": 99}))


def test_a_finished_sweep_writes_its_table_again(config: Config):
    variants = (ABLATIONS[0], Variant(name="other", title="other", overrides={"learner.credit.lam": 0.5}))
    for name, one in sweep.configs(config, variants).items():
        finish(one, {"a": float(name == "full"), "b": 1.0})
    sweep.run_sweep(config, variants, quiet=True)
    assert [line["gain"] for line in written(config)] == [None, -0.5]
    assert written(config)[1]["success"] == 0.5
    assert "other" in (config.run_dir / "sweep.txt").read_text()
    files = [(config.run_dir / name).open() for name in ("sweep.json", "sweep.txt")]
    whole = [file.read() for file in files]
    sweep.run_sweep(config, variants, quiet=True)
    for file, text in zip(files, whole, strict=True):
        file.seek(0)
        assert file.read() == text, "the old file is whole until the new one has its place"
        assert os.fstat(file.fileno()).st_nlink == 0


def test_a_run_whose_redis_has_a_password_counts_as_finished(tmp_path: Path):
    """Its config.yaml has none."""
    config = load_config("alfworld-tiny", [f"runs_dir={tmp_path}", "redis.url=redis://:secret@127.0.0.1:6379/0"])
    finish(config, {"a": 1.0})
    assert sweep.is_finished(config)


def test_the_table_of_a_sweep_waits_for_a_folder_that_cannot_be_written(config: Config):
    """A folder stands where the file should be, so that writing it raises OSError, until it is removed."""
    variants = ABLATIONS[:1]
    finish(sweep.configs(config, variants)["full"], {"a": 1.0})
    (config.run_dir / "sweep.json").mkdir()
    threading.Timer(2.0, (config.run_dir / "sweep.json").rmdir).start()
    sweep.run_sweep(config, variants, quiet=True)
    assert [line["variant"] for line in written(config)] == ["full"]
