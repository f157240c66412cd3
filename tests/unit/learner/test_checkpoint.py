import json

import pytest

from learner.checkpoint import Checkpoints, Position
from services.errors import LearnerFault


def position(step):
    return Position(step=step, incarnation=1, next_group=2 * step, trained=2 * step)


def commit(checkpoints, step, text="x"):
    return checkpoints.commit(position(step), lambda folder: (folder / "data").write_text(text))


def test_latest_is_what_was_committed_last(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    assert checkpoints.latest() is None
    folder = commit(checkpoints, 3)
    assert (folder / "data").read_text() == "x"
    assert Checkpoints(tmp_path, keep=2).latest() == position(3)


def test_the_newest_and_the_best_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step, score in ((1, 0.3), (2, 0.9), (3, 0.5), (4, 0.9), (5, 0.1)):
        commit(checkpoints, step)
        checkpoints.record_score(step, score)
    assert checkpoints.steps() == [2, 4, 5]
    assert checkpoints.best() == 2


def test_a_score_without_its_checkpoint_is_a_fault(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    with pytest.raises(LearnerFault, match="step 7 was evaluated"):
        checkpoints.record_score(7, 1.0)
    assert checkpoints.best() is None


def test_a_torn_write_leaves_the_previous_one_in_force(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    commit(checkpoints, 1)

    def torn(folder):
        (folder / "data").write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        checkpoints.commit(position(2), torn)
    again = Checkpoints(tmp_path, keep=1)
    assert again.latest() == position(1)
    assert again.steps() == [1]
    commit(again, 2)
    assert not list(tmp_path.glob(".tmp-*"))


def test_a_replayed_step_replaces_its_twin(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    commit(checkpoints, 1, "old")
    assert (commit(checkpoints, 1, "new") / "data").read_text() == "new"


def test_a_pointer_to_nothing_is_a_fault(tmp_path):
    (tmp_path / "latest.json").write_text(json.dumps({"format": 1, "step": 9}))
    with pytest.raises(Exception, match="step-00000009"):
        Checkpoints(tmp_path, keep=1).latest()
