"""The disk for checkpoints: 12 bytes for each trained parameter, and the export in the sampler's dtype."""

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from deploy.launch.planning import plan
from deploy.launch.planning.model_memory import checkpoint_bytes, kept_bytes
from deploy.launch.planning.warnings import short_of_disk
from deploy.runs.configs import load_config
from services.amounts import in_gib
from services.config.tree import Config

Usage = namedtuple("Usage", ("total", "used", "free"))
PARAMETERS = 1_543_714_304


def config(models: dict[str, Path], folder: Path, *overrides: str) -> Config:
    return load_config("alfworld-1.5b", [f"model.path={models['1.5b']}", f"runs_dir={folder}", "eval.every=10",
                                         *overrides])


@pytest.mark.parametrize(("overrides", "parameters"), [
    ([], 4 * 14 * PARAMETERS), (["checkpoint.keep=1"], 3 * 14 * PARAMETERS),
    (["eval.every=5"], (4 * 14 + 2 * 2) * PARAMETERS),
    (["sft.enabled=true", "eval.compare_cold_start=true"], (4 * 14 + 2 * 12) * PARAMETERS),
    (["learner.credit.estimator=ppo", "learner.loss.ratio=token"], 4 * (12 + 14) * PARAMETERS)])
def test_the_newest_the_best_and_a_draft_are_there_at_once(models, tmp_path, overrides, parameters):
    assert kept_bytes(config(models, tmp_path, *overrides)) == parameters


def test_adapters_alone_are_kept_with_their_moments(models, tmp_path):
    adapters = config(models, tmp_path, "learner.lora.rank=16")
    assert 2 * PARAMETERS < checkpoint_bytes(adapters) < 2.5 * PARAMETERS


@pytest.mark.parametrize(("free", "kept", "short"), [
    (80 << 30, 0, True), (80 << 30, 2 << 30, False), (81 << 30, 0, False)])
def test_too_small_a_disk_is_told_before_and_at_the_start(models, tmp_path, monkeypatch, free, kept, short):
    """86.4 GB are 80.5 GiB. What the run's checkpoints already take is theirs."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(free, 0, free))
    planned = config(models, tmp_path)
    file = planned.run_dir / "checkpoints" / "step-00000005" / "state"
    file.parent.mkdir(parents=True)
    with file.open("wb") as state:
        state.truncate(kept)
    line = (f"checkpoints may take 80.5 GiB, and {tmp_path} has 80.0 GiB free: choose another runs_dir, or lower "
            "checkpoint.keep=2")
    assert short_of_disk(planned) == [line] * short
    assert (f"warning       {line}" in plan.describe(planned)) is short
    assert plan.as_dict(planned)["warnings"] == [line] * short


def test_a_folder_of_another_machine_is_not_judged(models):
    assert short_of_disk(config(models, Path("/not/here/runs"))) == []


def test_a_size_below_a_twentieth_of_a_gib_is_told_in_mib():
    assert [in_gib(size) for size in (0, 36_700_160, 53_687_091, 53_687_092, 3 << 30)] == [
        "0 MiB", "35 MiB", "51 MiB", "0.1 GiB", "3.0 GiB"]
