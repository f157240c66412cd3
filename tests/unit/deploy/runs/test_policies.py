"""The model that a command plays, and its config."""

from pathlib import Path
from typing import BinaryIO

import pytest

from deploy import cli
from deploy.runs.policies import EXPORTED_CONFIG, find_policy, find_run, resolve, run_path
from deploy.training.evaluation import results_file
from learner.checkpoints import checkpoint as checkpoint_files
from learner.checkpoints.checkpoint import Checkpoints, Position
from services.config.file import dump_config
from services.config.tree import Config
from services.errors import UserError


def model_at(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def run_at(folder: Path, **config: object) -> Path:
    dump_config(Config(**{"name": "mine", "steps": 7, **config}), folder / "config.yaml")
    (folder / "run.json").write_text("{}")
    return folder


def test_a_run_stands_for_its_trained_model_and_its_config(tmp_path: Path):
    model = model_at(tmp_path / "run" / "model")
    run_at(tmp_path / "run")
    config, found = resolve(tmp_path / "run", None, {"eval.temperature": 0.7, "env.max_steps": None})
    assert (found.folder, config.name, config.eval.temperature) == (model, "mine", 0.7)
    assert found.title == f"the trained model of {tmp_path / 'run'}"
    assert config.env.max_steps == Config(name="mine", steps=7).env.max_steps
    assert config.model.path == model
    assert not config.sft.enabled


def test_a_model_inside_a_run_is_played_by_the_runs_config(tmp_path: Path):
    model = model_at(tmp_path / "run" / "model-cold-start")
    dump_config(Config(name="mine", steps=7), tmp_path / "run" / "config.yaml")
    assert resolve(model, None, {})[0].name == "mine"


def test_a_model_alone_needs_a_config(tmp_path: Path):
    model = model_at(tmp_path / "model")
    with pytest.raises(UserError, match="--config"):
        resolve(model, None, {})
    assert resolve(model, "alfworld-tiny", {}, ["eval.panel=8"])[0].eval.panel == 8


def test_a_misspelt_key_of_credit_is_refused_as_in_training(tmp_path: Path):
    """It was taken without a word, since playing reads no option of an estimator."""
    model_at(tmp_path / "run" / "model")
    run_at(tmp_path / "run")
    with pytest.raises(UserError, match=r"unknown key learner\.credit\.lamb: .*; did you mean learner\.credit\.lam\?"):
        resolve(tmp_path / "run", None, {}, ["learner.credit.lamb=1"])
    assert resolve(tmp_path / "run", None, {}, ["learner.credit.lam=1"])[0].learner.credit.model_dump()["lam"] == 1


def checkpoint(run: Path, step: int, *, keep: int = 3) -> None:
    checkpoints = Checkpoints(run / "checkpoints", keep=keep)
    model_at(checkpoints.draft(step) / "hf")
    checkpoints.commit(Position(step=step, incarnation=1, next_group=step, trained=step))


def test_a_policy_of_a_run_that_trains_stays_as_long_as_it_is_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = run_at(tmp_path / "run")
    checkpoint(run, 1)
    played = find_policy(run)
    checkpoint(run, 2, keep=1)
    assert (played.folder / "config.json").exists()
    hold = checkpoint_files.hold

    def too_late(folder: Path) -> BinaryIO:
        monkeypatch.undo()
        checkpoint(run, 3, keep=1)
        return hold(folder)

    monkeypatch.setattr(checkpoint_files, "hold", too_late)
    assert find_policy(run).step == 3, "the newest was replaced while it was looked for"
    del played
    checkpoint(run, 4, keep=1)
    assert Checkpoints(run / "checkpoints", keep=1).steps() == [4]


def test_a_policy_of_a_run_that_trains_stays_as_long_as_it_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A learner that commits meanwhile would delete files that are still to be copied."""
    run = run_at(tmp_path / "run")
    checkpoint(run, 1)

    def export(_: object, step: int, model: Path, out: Path) -> None:
        checkpoint(run, 2, keep=1)
        out.write_text(f"{step} {(model / 'config.json').read_text()}")

    monkeypatch.setattr("deploy.runs.export.export", export)
    assert cli.main(["export", str(run), str(tmp_path / "out")]) == 0
    assert (tmp_path / "out").read_text() == "1 {}"
    checkpoint(run, 3, keep=1)
    assert Checkpoints(run / "checkpoints", keep=1).steps() == [3]


def test_a_run_that_goes_on_stands_for_its_latest_checkpoint_and_a_checkpoint_can_be_chosen(tmp_path: Path):
    run = run_at(tmp_path / "run")
    with pytest.raises(UserError, match="has no checkpoints"):
        find_policy(run)
    for step in (1, 2, 3):
        checkpoint(run, step)
    with pytest.raises(UserError, match="there is no checkpoint 'best'; use latest or one of the steps kept: 1, 2, 3"):
        find_policy(run, "best")  # none is evaluated yet
    Checkpoints(run / "checkpoints", keep=3).record_score(2, 0.5)
    assert find_policy(run).title == f"the latest checkpoint of {run}, learner step 3"
    assert find_policy(run, "best").title == f"the best checkpoint of {run}, learner step 2"
    assert find_policy(run, "1").folder == run / "checkpoints" / "step-00000001" / "hf"
    model_at(run / "model")
    assert find_policy(run).title == f"the trained model of {run} after learner step 3"
    for which, match in (("9", "use latest, best or one of the steps kept: 1, 2, 3"), ("newest", "no checkpoint")):
        with pytest.raises(UserError, match=match):
            find_policy(run, which)
    with pytest.raises(UserError, match="is no run's folder, so it has no checkpoint"):
        find_policy(run / "model", "best")


def test_a_run_before_its_first_checkpoint_has_none_and_a_trained_model_needs_none(tmp_path: Path):
    """Training makes the folder when it starts, and a user may empty it when it has ended."""
    run = run_at(tmp_path / "run")
    Checkpoints(run / "checkpoints", keep=1)
    for which in (None, "latest", "best", "3"):
        with pytest.raises(UserError, match="has no checkpoints"):
            find_policy(run, which)
    model_at(run / "model")
    assert find_policy(run).title == f"the trained model of {run}"


def test_the_weights_of_each_step_have_a_name_of_their_own(tmp_path: Path):
    """Kept trials are told apart by it. The folder of every checkpoint's model has the same name."""
    run = run_at(tmp_path / "mine", steps=20)
    checkpoint(run, 10)
    checkpoint(run, 20)
    assert [find_policy(run, which).name for which in ("10", "20", "latest")] == [
        "mine step 10", "mine step 20", "mine step 20"]
    assert find_policy(model_at(run / "model")).name == "model"
    assert find_policy(run).name == "mine step 20", "the trained model is that of the last step"


def test_an_exported_folder_has_its_config_with_it(tmp_path: Path):
    folder = model_at(tmp_path / "exported")
    dump_config(Config(name="mine", steps=7), folder / EXPORTED_CONFIG)
    config, policy = resolve(folder, None, {})
    assert (config.name, config.model.path, policy.title) == ("mine", folder, str(folder))


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Provides a run called `mine` in ./runs."""
    monkeypatch.chdir(tmp_path)
    dump_config(Config(name="mine", steps=7), Path("runs/mine/config.yaml"))


def test_a_bare_name_is_a_run_in_runs_unless_a_run_or_a_model_is_here(mine):
    assert run_path("mine") == run_path("runs/mine") == Path("runs/mine")
    assert run_path("other") == Path("other")
    Path("mine").mkdir()
    assert run_path("mine") == Path("runs/mine")
    model_at(Path("mine/inside")).rename("other")
    Path("runs/mine").rename("runs/other")
    assert run_path("other") == Path("other")
    dump_config(Config(name="mine", steps=7), Path("mine/config.yaml"))
    assert run_path("mine") == Path("mine")


@pytest.fixture
def safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provides the source folder ./safe of an environment, as `gagpo new-env` makes it, with a config."""
    monkeypatch.chdir(tmp_path)
    dump_config(Config(name="safe", steps=7), Path("safe/config.yaml"))
    Path("safe/game.py").write_text("")
    return Path("safe")


def test_the_source_folder_of_an_environment_is_not_its_run_of_the_same_name(safe: Path):
    (run_at(Path("runs/safe"), name="safe") / "metrics.jsonl").write_text("")
    assert run_path("safe") == Path("runs/safe")
    with pytest.raises(UserError, match=r"^safe is not the folder of a run; did you mean runs/safe\?"):
        find_run(safe)


def test_the_source_folder_of_an_environment_without_a_run_is_no_run(safe: Path, capsys: pytest.CaptureFixture[str]):
    before = sorted(safe.iterdir())
    for argv in (["status", "safe"], ["report", "safe"], ["train", "--resume", "safe", "--dry-run"]):
        assert cli.main(argv) == 2
        assert "safe is not the folder of a run" in capsys.readouterr().err
    assert cli.main(["eval", "safe"]) == 2
    assert "safe holds no model" in capsys.readouterr().err
    assert sorted(safe.iterdir()) == before
    with pytest.raises(UserError, match=r"and .*/runs has none"):
        find_run(Path())


def test_a_model_beside_which_a_config_of_others_lies_is_a_model(safe: Path):
    model_at(safe / "inside").joinpath("config.json").rename(safe / "config.json")
    assert find_policy(safe).folder == safe
    assert results_file(safe) == safe.resolve().with_name("safe.eval.jsonl")


def test_a_wrong_run_name_is_told_the_nearest_run_or_all_runs(mine):
    with pytest.raises(UserError, match=r"runs/mien is not the folder of a run; did you mean runs/mine\?"):
        find_run(Path("runs/mien"))
    Path("log.jsonl").touch()
    with pytest.raises(UserError, match=r"log\.jsonl is a file, and no folder of a run; `gagpo credit` reads logs"):
        find_run(Path("log.jsonl"))
    with pytest.raises(UserError, match="xyz is not the folder of a run; give one of runs/mine"):
        find_run(Path("xyz"))


def test_where_no_run_is_the_place_that_was_searched_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A notebook starts in its own folder: `give runs/<name>` was no help to one that said runs/mine."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"runs/mine is not the folder of a run, and {tmp_path}/runs has none; give"):
        find_run(Path("runs/mine"))


def test_the_folder_of_a_sweep_is_answered_with_its_runs(mine):
    for variant in ("full", "no-norm"):
        dump_config(Config(name=variant, steps=7), Path(f"runs/ablations/{variant}/config.yaml"))
    with pytest.raises(UserError, match=r"runs/ablations is not the folder .*; give one of \S+/full, \S+/no-norm$"):
        find_run(run_path("ablations"))


@pytest.mark.parametrize(("argv", "field"), [
    (["status", "mine"], "run_folder"), (["export", "mine", "out"], "run_folder"),
    (["play", "task", "--agent", "mine"], "agent"),
    (["explore", "mine"], "runs"), (["report", "mine"], "runs")])
def test_every_command_that_takes_a_run_takes_its_name(mine, argv: list[str], field: str):
    found = getattr(cli.parse(argv), field)
    assert found in (Path("runs/mine"), [Path("runs/mine")])


@pytest.mark.parametrize("options", [[], ["--prompts", "2"]])
def test_a_model_that_a_program_asks_is_not_asked_by_a_prompt_that_it_has_never_seen(
        tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]):
    model_at(tmp_path / "run/model")
    run_at(tmp_path / "run", agent={"name": "rollout.agents.conversation:agent"})
    assert cli.main(["play", "alfworld-gen/valid/look-0001", "--agent", str(tmp_path / "run"), *options]) == 2
    assert "is asked by the agent program rollout.agents.conversation:agent" in capsys.readouterr().err


def test_eval_takes_the_name_of_a_run_too(mine, capsys: pytest.CaptureFixture[str]):
    """It tells the model from overrides after parsing, so its refusal shows which folder it means."""
    assert cli.main(["eval", "mine"]) == 2
    assert "error: runs/mine has no checkpoints" in capsys.readouterr().err
