"""How `gagpo train` finds its config, and what a dry run says about an existing folder."""

import errno
import json
import os
import re
import shutil
import tempfile
from pathlib import Path

import pytest

from deploy import cli
from deploy.launch.planning import gpu_pool, machine
from deploy.launch.planning.task_sets import open_task_sets
from deploy.runs.configs import load_config
from deploy.runs.folder import open_run
from deploy.training.sweep import ABLATIONS, configs
from learner.checkpoints.checkpoint import Checkpoints, Position
from services.amounts import GIB

TOKENIZER = Path(__file__).parents[3] / "integration/deploy/explorer/walk/model/tokenizer.json"
RESUMED = pytest.mark.parametrize("given", ["runs/mine", "mine"])


@pytest.fixture(autouse=True)
def roomy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Provides a machine with room for the plan, and the working directory for bare names."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    monkeypatch.setattr(machine, "cpu_count", lambda: 8.0)
    monkeypatch.setattr(machine, "available_memory", lambda: 64 * GIB)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def mine() -> None:
    """Provides a run that has begun with its own settings."""
    begin("learner.lr=3e-3", "steps=7")


def begin(*overrides: str, games: str | None = None) -> None:
    """Makes the folder of a run that played `games`; None: those that there are."""
    config = load_config("alfworld-tiny", ["name=mine", *overrides])
    open_run(config, games=open_task_sets(config).games if games is None else games, resume=False)


def checkpoint(step: int) -> None:
    """Makes a checkpoint of the run after a learner step."""
    checkpoints = Checkpoints(Path("runs/mine/checkpoints"), keep=1)
    checkpoints.draft(step)
    checkpoints.commit(Position(step=step, incarnation=1, next_group=step, trained=step))


@RESUMED
def test_resume_needs_only_the_run(mine, given: str, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["train", "--resume", given, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("run           runs/mine, 7 learner steps, seed 0\n")
    assert "folder        runs/mine holds a run, which would continue" in out


def test_overrides_are_laid_over_the_runs_config(mine, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["train", "--resume", "mine", "steps=9", "--dry-run"]) == 0
    assert "runs/mine, 9 learner steps" in capsys.readouterr().out
    assert cli.main(["train", "--resume", "mine", "steps=1", "--dry-run"]) == 0
    assert "runs/mine, 1 learner step, seed 0" in capsys.readouterr().out


def test_a_dry_run_has_the_numbers_of_gagpo_scale(mine, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["scale", "runs/mine", "rollout=3", "env=2"]) == 0
    capsys.readouterr()
    assert cli.main(["train", "--resume", "mine", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"rollout worker +3 ", out)
    assert re.search(r"environment server +2 ", out)
    assert "would continue" in out
    assert cli.main(["train", "--resume", "mine", "rollout.workers=2", "--dry-run", "--json"]) == 0
    counts = {each["name"]: each["count"] for each in json.loads(capsys.readouterr().out)["processes"]}
    assert (counts["rollout worker"], counts["environment server"]) == (2, 2)


def test_a_dry_run_says_that_a_run_has_taken_more_steps_than_it_is_to_have(mine, capsys: pytest.CaptureFixture[str]):
    Path("runs/mine/checkpoints/step-00000007").mkdir(parents=True)
    assert cli.main(["train", "--resume", "mine", "steps=5", "--dry-run"]) == 0
    assert ("a start would be refused: steps=5 is fewer than the 7 that runs/mine has taken; steps counts from the "
            "beginning: give 12 for 5 more") in capsys.readouterr().out


def test_a_finished_run_stays_finished_if_a_step_of_it_is_to_be_skipped(mine, capsys: pytest.CaptureFixture[str]):
    """`gagpo status` showed the refusal as the end of the run."""
    checkpoint(7)
    for planned in ([], ["--dry-run"]):
        assert cli.main(["train", "--resume", "mine", "--skip-step", "3", *planned]) == 2
        assert capsys.readouterr().err == ("error: step 3 cannot be skipped: the learner of runs/mine has finished; "
                                           "leave --skip-step out\n")
    assert not Path("runs/mine/stage.json").exists()


def test_a_step_in_a_checkpoint_is_not_skipped_and_nothing_is_started(mine, capsys: pytest.CaptureFixture[str]):
    """Redis, Ray and the servers were started before the refusal, and a dry run accepted it."""
    checkpoint(4)
    for planned in (["--dry-run"], []):
        assert cli.main(["train", "--resume", "mine", "--skip-step", "4", *planned]) == 2
        assert capsys.readouterr().err == ("error: step 4 cannot be skipped: the steps up to 4 are in a checkpoint; "
                                           "leave --skip-step out, or name a later step\n")
    assert not Path("runs/mine/stage.json").exists()
    assert cli.main(["train", "--resume", "mine", "--skip-step", "5", "--dry-run"]) == 0


def test_a_refusal_lists_the_keys_that_differ(mine, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["train", "--resume", "mine", "learner.lr=1e-2"]) == 2
    assert capsys.readouterr().err == (
        "error: runs/mine belongs to a run with another config: learner.lr is 0.003 there and 0.01 here; "
        "use its values to continue it, or give this run another name (name=...)\n")


def test_a_dry_run_says_that_the_run_was_played_on_other_games(capsys: pytest.CaptureFixture[str]):
    begin(games="9 games of alfworld (ab), own 1")
    assert cli.main(["train", "--resume", "mine", "--dry-run"]) == 0
    assert "a start would be refused: runs/mine was played on 9 games of alfworld (ab), own 1, and now there is 1000 " \
        in capsys.readouterr().out


def test_a_dry_run_compares_with_the_run_that_goes_on_as_its_start_does(capsys: pytest.CaptureFixture[str]):
    """These settings are refused together in a new run; a run of an earlier version may have them, and goes on."""
    begin("rollout.exact=true", "learner.staleness=1")
    assert cli.main(["train", "--resume", "mine", "--dry-run"]) == 0
    assert "holds a run, which would continue" in capsys.readouterr().out


def test_a_run_that_was_moved_goes_on_where_it_lies(mine, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    Path("runs").rename("kept")
    assert cli.main(["train", "--resume", "kept/mine", "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("run           kept/mine,")
    Path("kept").rename("day=24")
    assert cli.main(["train", "--resume", "day=24/mine", "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("run           day=24/mine,")
    for odd in ("null", "\U0001F600 day", '"quoted" #1'):
        Path(odd).mkdir()
        Path("day=24/mine").rename(f"{odd}/mine")
        assert cli.main(["train", "--resume", f"{odd}/mine", "--dry-run"]) == 0
        assert capsys.readouterr().out.startswith(f"run           {odd}/mine,")
        Path(f"{odd}/mine").rename("day=24/mine")


def test_a_variant_of_a_sweep_that_was_moved_finds_its_cold_start(capsys: pytest.CaptureFixture[str]):
    """The cold start is not whole here, so that the refusal tells which one was looked at."""
    made = configs(load_config("alfworld-tiny", ["name=swept"]), ABLATIONS)
    open_run(made["no-temporal"], games="g", resume=False)
    Path("runs/swept/full/model-cold-start").mkdir(parents=True)
    Path("runs/swept").rename("kept")
    assert cli.main(["train", "--resume", "kept/no-temporal", "--dry-run"]) == 2
    assert f"{Path('kept').absolute()}/full/model-cold-start" in capsys.readouterr().err


def test_a_model_that_is_in_its_place_is_not_taken_from_a_run_of_the_same_name_here(capsys: pytest.CaptureFixture[str]):
    """Both starting models are not whole, so that the refusal tells which one was looked at."""
    for place in ("data/runs/small", "runs/small"):
        Path(place, "model-cold-start").mkdir(parents=True)
    model = Path("data/runs/small/model-cold-start").absolute()
    begin("sft.enabled=false", f"model.path={model}")
    for settings in ([], [f"model.path={model}"]):
        assert cli.main(["train", "--resume", "mine", *settings, "--dry-run"]) == 2
        assert f"{model}" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "status", "advice"), [
    (errno.ENOSPC, 1, "make room for this one"), (errno.EDQUOT, 1, "make room for this one"),
    (errno.EACCES, 2, "make it writable for this user")])
def test_a_supervisor_starts_a_run_again_after_a_full_disk_and_not_after_a_refusal(
        mine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number, status, advice):
    """A full disk ended with the status of a mistake, and the advice to change permissions."""
    def refuse(**_: object) -> None:
        raise OSError(number, os.strerror(number), "runs/mine/.gagpo-x")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", refuse)
    assert cli.main(["train", "--resume", "mine"]) == status
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert advice in said


@pytest.mark.parametrize(("arguments", "line"), [
    ([], "neither --config nor a run is given; give --config FILE, or --resume RUN"),
    (["--resume", "min"], "min is not the folder of a run; did you mean runs/mine?"),
    (["--resume", "mine", "--config", "alfworld-tiny"],
     "--resume mine has its config in its folder; leave --config and --sweep out, or leave the run's name out"),
    (["--resume", "mine", "name=other"],
     "runs/mine is the folder of a run named other; rename the folder to other, and leave name= out"),
    (["--config", "alfworld-tinny"], "there is no config file alfworld-tinny; did you mean alfworld-tiny?"),
])
def test_a_mistake_is_one_line(mine, arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["train", *arguments]) == 2
    assert capsys.readouterr().err == f"error: {line}\n"


def test_with_a_config_resume_takes_no_name_and_starts_or_goes_on(mine, capsys: pytest.CaptureFixture[str]):
    """The form of `make train`."""
    for overrides in (["name=fresh"], ["name=mine", "learner.lr=3e-3", "steps=7"]):
        assert cli.main(["train", "--resume", "--config", "alfworld-tiny", *overrides, "--dry-run"]) == 0
        assert "refused" not in capsys.readouterr().out
    assert cli.main(["train", "--config", "alfworld-tiny", "--dry-run", "--resume", "name=fresh"]) == 0
    assert "runs/fresh" in capsys.readouterr().out


def test_a_dry_run_never_refuses_because_of_a_folder_and_finds_a_bad_value_all_the_same(
        mine, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["train", "--config", "alfworld-tiny", "name=mine", "--dry-run"]) == 0
    assert "a start would be refused: runs/mine belongs to a run with another config: " in capsys.readouterr().out
    for name in ("mine", "fresh"):
        assert cli.main(["train", "--config", "alfworld-tiny", f"name={name}", "learner.token_budget=64",
                         "--dry-run"]) == 2
        assert "learner.token_budget=64 holds no whole row" in capsys.readouterr().err


def test_a_sweep_checks_each_variant_before_the_first_one_starts(capsys: pytest.CaptureFixture[str]):
    """PPO has groups of one episode, all of which dynamic sampling would drop."""
    assert cli.main(["train", "--config", "alfworld-tiny", "--sweep", "table1", "learner.dynamic_sampling=1",
                     "--dry-run"]) == 2
    assert capsys.readouterr().err.startswith(
        "error: variants ppo-seed0, ppo-seed1, ppo-seed2: learner.dynamic_sampling drops groups")


def test_a_sweep_checks_that_each_variant_has_games_enough(capsys: pytest.CaptureFixture[str],
                                                           monkeypatch: pytest.MonkeyPatch):
    """PPO plays eight times as many games in a step as the methods with groups of eight."""
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    assert cli.main(["train", "--config", "alfworld-tiny", "--sweep", "table1", "learner.groups_per_step=200",
                     "--dry-run"]) == 2
    assert capsys.readouterr().err.startswith(
        "error: variants ppo-seed0, ppo-seed1, ppo-seed2: too few games of the chosen kinds: learner.groups_per_step "
        "asks for 1,600 and")


def test_the_mistakes_of_a_sweep_come_together(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Those of the config come with those of the variants' keys, and once it is right, those of all variants."""
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    given = ["train", "--config", "alfworld-tiny", "--dry-run", "--sweep"]
    assert cli.main([*given, "table3", "learner.credit.estimator=grpo", "learner.token_budget=64"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("error: variant gamma0.95-lambda0.8 sets learner.credit.gamma, and estimator grpo")
    assert second.startswith("error: learner.token_budget=64 holds no whole row")
    assert cli.main([*given, "table1", "learner.dynamic_sampling=1", "learner.groups_per_step=200"]) == 2
    ppo = "error: variants ppo-seed0, ppo-seed1, ppo-seed2: "
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"{ppo}learner.dynamic_sampling drops groups")
    assert second.startswith(f"{ppo}too few games")


def test_a_sweep_that_is_there_is_refused_before_anything_starts(capsys: pytest.CaptureFixture[str]):
    """It told to go on with one of its runs, and beside that to go on with the sweep."""
    made = configs(load_config("alfworld-tiny", ["name=swept"]), ABLATIONS)
    for variant in ("full", "no-temporal"):
        open_run(made[variant], games=open_task_sets(made[variant]).games, resume=False)
    assert cli.main(["train", "--config", "alfworld-tiny", "name=swept", "--sweep", "ablations"]) == 2
    assert capsys.readouterr().err == (
        "error: runs/swept holds runs of a sweep already; continue it by the same command with --resume, or give "
        "this sweep another name (name=...)\n")
    assert cli.main(["train", "--config", "alfworld-tiny", "name=swept", "--sweep", "ablations", "--resume",
                     "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "runs/swept/no-temporal holds a run, which would continue" in out
    assert "refused" not in out


def test_a_dry_run_for_gpus_ends_with_what_this_machine_lacks(
        model_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """The plan itself is for the GPUs that `hardware` names, so it passes."""
    monkeypatch.setattr(gpu_pool, "visible", lambda: None)
    monkeypatch.setattr(machine, "cpu_count", lambda: 1.0)
    given = ["train", "--config", "alfworld-1.5b", f"model.path={model_folder}", "env.prompt=compact",
             "rollout.max_prompt_tokens=400", "rollout.max_response_tokens=100", "--dry-run"]
    assert cli.main(given) == 0
    end = capsys.readouterr().out.partition("nothing was started\n")[2].splitlines()
    other_machines = "this machine cannot start it: this machine cannot run on its GPUs"  # where no C compiler is
    assert [line.partition(", and ")[0] for line in end if not line.startswith(other_machines)] == [
        "this machine cannot start it: the plan asks for 1 GPU",
        "this machine cannot start it: rollout.gpus=0.4", "this machine cannot start it: learner.gpus=0.6",
        "this machine cannot start it: the plan reserves 2 CPUs",
        "this machine cannot start it: rollout.threads=2", "this machine cannot start it: learner.threads=2"]
    assert cli.main([*given, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["lacks"]) == len(end)
    assert cli.main(["train", "--config", "alfworld-tiny", "rollout.threads=1", "learner.threads=1", "learner.cpus=0",
                     "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["lacks"] == []


@pytest.fixture
def model_folder(tmp_path: Path, tiny_model) -> Path:
    """Provides a whole folder of a tiny model."""
    tiny_model(tied=True, seed=0).save_pretrained(tmp_path / "model")
    shutil.copyfile(TOKENIZER, tmp_path / "model" / "tokenizer.json")
    return tmp_path / "model"
