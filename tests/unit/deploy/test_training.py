"""When a run evaluates what."""

from pathlib import Path

import pytest

from deploy.panels import Panels
from deploy.progress import Progress
from deploy.run_folder import RunFolder
from deploy.training import TrainingRun
from learner.checkpoint import Checkpoints, Position
from services.config import Config
from services.records import Version


@pytest.fixture
def training(tmp_path: Path) -> TrainingRun:
    """Evaluates every third of seven steps, and the last."""
    config = Config.model_validate({"name": "t", "steps": 7, "runs_dir": tmp_path, "eval": {"every": 3}})
    panels = Panels(env_name="toy", engine="corridor", train=("toy/train/0",), validation=("toy/valid/0",),
                    validation_split="valid", heldout=(), heldout_split="test", heldout_digest="", games="",
                    task_type=lambda _: "toy")
    return TrainingRun(config=config, folder=RunFolder(tmp_path), run="t-1", panels=panels, progress=Progress("t", 7))


def due(training: TrainingRun) -> list[int]:
    versions = [Version(incarnation=1, step=step) for step in range(8)]
    return [request.version.step for request in map(training.evaluation_of, versions) if request is not None]


def test_a_version_is_evaluated_once_its_checkpoint_is_there(training: TrainingRun):
    """The policy that RL starts from needs none."""
    checkpoints = Checkpoints(training.folder.path / "checkpoints", keep=1)
    found = [due(training)]
    for step in (2, 3, 7):
        checkpoints.commit(Position(step=step, incarnation=1, next_group=step, trained=step), lambda _: None)
        found.append(due(training))
    assert found == [[0], [0], [0, 3], [0, 3, 6, 7]]
