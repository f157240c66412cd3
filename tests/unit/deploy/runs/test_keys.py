"""The files that a run leaves outside of its folder are deleted with the folder."""

from pathlib import Path

import pytest

from deploy.runs.configs import load_config
from deploy.training.evaluation import erase_keys
from services.config.file import dump_config


def test_a_run_with_a_redis_of_its_own_leaves_no_bodies(tmp_path: Path):
    """They stayed for good: run.json, which alone has their folder's name, is deleted with the run."""
    for run in ("mine-1", "other-2"):
        (tmp_path / run).mkdir()
        (tmp_path / run / "body").write_text("turns")
    config = load_config("alfworld-tiny", [f"redis.bodies=file://{tmp_path}"])
    dump_config(config, tmp_path / "config.yaml")
    erase_keys("mine-1", tmp_path / "config.yaml", ours=config.redis, what="mine", note=pytest.fail)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("body")] == ["other-2/body"]
