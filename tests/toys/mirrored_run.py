"""A run's folder and its copy in an object store, for tests of the mirror."""

import json

from deploy.runs.configs import default_config
from deploy.runs.mirror import claim
from learner.checkpoints.checkpoint import Checkpoints, Position
from services.object_folder import ObjectFolder


def config(tmp_path, node="here", name="mine"):
    url = (tmp_path / "store").as_uri()
    return default_config([f"name={name}", f"runs_dir={tmp_path / node}", f"storage.url={url}"])


def a_run(config):
    """Makes the run's folder as its start does."""
    config.run_dir.mkdir(parents=True)
    claim(config, resume=False)
    (config.run_dir / "run.json").write_text(json.dumps({"run": "mine-1"}))
    (config.run_dir / "config.yaml").write_text("name: mine\n")
    (config.run_dir / "metrics.jsonl").write_text("one\n")
    (config.run_dir / "episodes").mkdir()
    return config.run_dir


def commit(folder, step, text="weights", *, alone=False):
    checkpoints = Checkpoints(folder / "checkpoints", keep=2)
    (checkpoints.draft(step) / "hf").mkdir()
    (checkpoints.drafted(step) / "hf" / "model").write_text(text)
    seal = checkpoints.commit_weights if alone else checkpoints.commit
    seal(Position(step=step, incarnation=1, next_group=step, trained=step))


def stored(tmp_path):
    return set(ObjectFolder((tmp_path / "store" / "mine").as_uri()).sizes())
