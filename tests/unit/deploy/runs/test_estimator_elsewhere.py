"""A run of an estimator of the user's own, looked at and played where its module is not."""

from pathlib import Path

import pytest

import gagpo
from deploy import cli
from deploy.runs.configs import load_config
from deploy.runs.export import export
from deploy.runs.folder import RunFolder
from deploy.runs.policies import resolve
from learner.cold_start.scratch_model import train_tokenizer
from services.config.file import dump_config
from services.config.tree import Config
from services.errors import UserError


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run with a trained model."""
    credit = {"estimator": "moved_away:Above", "level": 0.25, "state_key": "moved_away:Length", "unit": 7}
    config = Config.model_validate({"name": "mine", "steps": 7, "learner": {"credit": credit}})
    dump_config(config, tmp_path / "mine/config.yaml")
    (tmp_path / "mine/run.json").write_text("{}")
    train_tokenizer(["you are in a room", "you see a desk"]).save_pretrained(tmp_path / "mine/model")
    (tmp_path / "mine/model/config.json").write_text("{}")
    return RunFolder(tmp_path / "mine")


@pytest.mark.parametrize("command", ["status", "scale", "audit"])
def test_commands_tell_of_it(folder: RunFolder, command: str, capsys: pytest.CaptureFixture[str]):
    assert cli.main([command, str(folder.path)]) == 0, capsys.readouterr().err


def test_its_model_is_exported(folder: RunFolder, tmp_path: Path):
    export(folder, 7, folder.trained_model, tmp_path / "out")
    assert "| credit | `moved_away:Above` |" in (tmp_path / "out/README.md").read_text()


def test_its_model_is_played(folder: RunFolder):
    config, policy = resolve(folder.path, None, {"eval.temperature": 0.7}, ["env.max_steps=9"])
    assert (policy.folder, config.eval.temperature, config.env.max_steps) == (folder.trained_model, 0.7, 9)


def test_its_config_has_the_options_that_were_written(folder: RunFolder):
    credit = gagpo.open_run(folder.path).config.learner.credit.model_dump()
    assert (credit["level"], credit["unit"]) == (0.25, 7)


def test_training_needs_the_module(folder: RunFolder):
    with pytest.raises(UserError, match="the estimator moved_away:Above cannot be imported"):
        load_config(folder.config_file)
