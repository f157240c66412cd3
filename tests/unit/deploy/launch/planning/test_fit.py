"""One key, hardware=cpu, for a config that was made for GPUs."""

from pathlib import Path

import pytest

from deploy.launch.checks import preflight
from deploy.launch.planning import machine
from deploy.launch.planning.fit import on_cpu
from deploy.runs.configs import load_config
from deploy.runs.folder import differences
from services.amounts import GIB

PRESETS = ("alfworld-1.5b", "alfworld-7b", "alfworld-7b-one-gpu", "alfworld-32b", "alfworld-best")


@pytest.fixture(autouse=True)
def generated_games(two_cpus: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)


@pytest.mark.parametrize("preset", PRESETS)
def test_each_preset_for_gpus_passes_the_checks_of_a_machine_without_one(
        preset: str, models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Two CPUs and 20 GiB. Nothing changes that decides what is learned, and a second call changes nothing."""
    monkeypatch.setattr(machine, "available_memory", lambda: 20 * GIB)
    given = load_config(preset, [f"model.path={models['135m']}", f"runs_dir={tmp_path}", "hardware=cpu"])
    lines: list[str] = []
    fitted = on_cpu(given, lines.append)
    (line,) = lines
    assert line.startswith("hardware=cpu sets ")
    preflight.check_parts(fitted, planned=True)
    preflight.check_parts(fitted)
    assert differences(given, fitted) == []
    assert on_cpu(fitted, lines.append) == fitted
    assert len(lines) == 1


def test_the_line_names_each_key_that_it_sets(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch):
    """A KV cache of 20 GB becomes one of 0.625, and passes of 16,384 tokens become ones of 4,096."""
    monkeypatch.setattr(machine, "available_memory", lambda: 20 * GIB)
    lines: list[str] = []
    on_cpu(load_config("alfworld-1.5b", [f"model.path={models['135m']}", "hardware=cpu"]), lines.append)
    assert lines == ["hardware=cpu sets rollout.gpus=0.0, rollout.kv_cache_gb=0.625, learner.gpus=0.0, "
                     "learner.token_budget=4096"]


def test_workers_are_as_many_as_there_are_cpus_for(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "cpu_count", lambda: 4.0)
    monkeypatch.setattr(machine, "available_memory", lambda: 400 * GIB)
    given = load_config("alfworld-7b", [f"model.path={models['135m']}", "hardware=cpu", "rollout.workers=8"])
    assert on_cpu(given, print).rollout.workers == 3


def test_without_the_key_a_config_stays_as_it_is(models: dict[str, Path]):
    given = load_config("alfworld-1.5b", [f"model.path={models['135m']}"])
    assert on_cpu(given, print) is given
