"""Runs are pooled into arms by what decides about them."""

import shutil

import pytest

from deploy.report.runs import compare_runs, read_run
from deploy.runs.configs import load_config
from deploy.training.paper_tables import SWEEPS
from deploy.training.sweep import configs
from services.config.file import dump_config


@pytest.mark.parametrize("moved", ["table", "kept"])
def test_the_runs_of_a_sweep_are_arms_of_all_its_seeds(tmp_path, run, moved):
    """All begin with the first one's cold start. It was an arm of its own, so no difference had two pairs."""
    base = load_config("alfworld-tiny", [f"runs_dir={tmp_path}", "name=table"])
    for name, config in configs(base, SWEEPS["table1"](base)).items():
        shutil.copytree(run("made"), config.run_dir, dirs_exist_ok=True)
        shutil.rmtree(tmp_path / "made")
        dump_config(config, config.run_dir / "config.yaml")
        assert config.run_dir.name == name
    (tmp_path / "table").rename(tmp_path / moved)
    compared = compare_runs([read_run(folder) for folder in sorted((tmp_path / moved).iterdir())])
    seeds = {arm: sorted(record.seed for record in compared.records if record.arm == arm) for arm in compared.arms}
    assert sorted(seeds) == ["gagpo", "gigpo", "grpo", "ppo", "rloo"]
    assert set(map(tuple, seeds.values())) == {(0, 1, 2)}
