"""A run's rows in TensorBoard and W&B, read back from what they wrote."""

from pathlib import Path

import pytest

from deploy.runs import sinks
from services.config.tree import Config
from services.errors import UserError

ROW = {"format": 1, "step": 3, "version": "1.3", "time": 1.0, "success_rate": 0.25, "loss/policy": -0.125,
       "grad_norm": None}
EVALUATION = {"format": 1, "label": "step-000003", "step": 3, "split": "valid", "temperature": 0.4, "tasks": 8,
              "success_rate": 0.5, "task_score": None, "success_by_type": {"pick": 0.75}, "success_by_task": {"a": 1.0}}


def config(*names: str) -> Config:
    return Config.model_validate({"name": "tiny", "steps": 4, "metrics": {"sinks": names}})


def write(folder: Path, name: str) -> None:
    with sinks.sinks(config(name), folder, "tiny-1") as tell:
        tell.step(ROW)
        tell.evaluation(EVALUATION)


def test_tensorboard_holds_every_figure_at_its_step(tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    write(tmp_path, "tensorboard")
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    found = {tag: [(event.step, float(make_ndarray(event.tensor_proto))) for event in events.Tensors(tag)]
             for tag in events.Tags()["tensors"]}
    assert found == {
        "success_rate": [(3, 0.25)], "loss/policy": [(3, -0.125)], "evaluation/valid-T0.4/success_rate": [(3, 0.5)],
        "evaluation/valid-T0.4/success/pick": [(3, 0.75)]}


def test_wandb_writes_a_run_to_be_synchronised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    sinks.check(config("wandb"))
    write(tmp_path, "wandb")
    (file,) = (tmp_path / "wandb").glob("offline-run-*/run-tiny-1.wandb")
    content = file.read_bytes()
    assert all(text in content for text in (b"loss/policy", b"-0.125", b"evaluation/valid-T0.4/success/pick", b"0.75"))


def test_a_sink_without_its_package_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UserError, match="has tensorboard, and the package is not installed") as caught:
        sinks.check(config("tensorboard"))
    assert caught.value.fix == "pip install tensorboard"


def test_wandb_without_a_login_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: True)
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UserError, match="there is no login"):
        sinks.check(config("wandb"))
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    sinks.check(config("wandb"))


def test_without_sinks_nothing_is_opened(tmp_path: Path):
    sinks.check(config())
    with sinks.sinks(config(), tmp_path, "tiny-1") as tell:
        tell.step(ROW)
    assert not list(tmp_path.iterdir())
