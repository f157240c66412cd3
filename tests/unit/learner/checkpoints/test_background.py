"""Work beside the loop: its end and its errors reach the loop's thread."""

import threading

import pytest
from torch.distributed.checkpoint.api import CheckpointException

from learner.checkpoints.background import Background
from services.errors import DeadlineExceeded, LearnerFault, LeaseLost


def background():
    return Background("checkpoint", deadline_s=60.0)


def fails(error):
    def work():
        raise error

    return work


def test_the_loop_goes_on_until_it_waits():
    told, go = [], threading.Event()
    with background() as beside:
        beside.start(lambda: go.wait(60) and told.append("first"))
        assert (beside.busy, told) == (True, [])
        beside.check()
        go.set()
        beside.start(lambda: told.append("second"))
    assert (beside.busy, told) == (False, ["first", "second"])


def test_an_error_is_raised_once_where_the_loop_looks():
    beside = background()
    beside.start(fails(LeaseLost("gone")))
    with pytest.raises(LeaseLost, match="gone"):
        beside.wait()
    beside.check()
    beside.start(fails(CheckpointException("some ranks", {0: (OSError("disk full"), None)})))
    with pytest.raises(LearnerFault, match=r"^checkpoint: .+"):
        beside.wait()


def test_the_end_of_the_block_raises_it_too_but_never_in_the_place_of_the_blocks_own():
    with pytest.raises(OSError, match="disk full"), background() as beside:
        beside.start(fails(OSError("disk full")))
    with pytest.raises(KeyError, match="the loop's"):
        its_own_error()


def its_own_error():
    with background() as beside:
        beside.start(fails(OSError("disk full")))
        raise KeyError("the loop's")


def test_background_work_beyond_its_deadline_is_an_error():
    go, beside = threading.Event(), Background("checkpoint", deadline_s=0.01)
    beside.start(lambda: go.wait(60))
    with pytest.raises(DeadlineExceeded, match=r"not done in 0\.01 s \(learner\.collective_s\)"):
        beside.wait()
    go.set()
