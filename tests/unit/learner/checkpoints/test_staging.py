"""The host memory of checkpoints: a copy keeps what it was given, and its memory is used again."""

import torch

from learner.checkpoints.staging import HostCopy
from learner.checkpoints.state_files import load_state, save_state


def state(fill):
    return {"model": {"w": torch.full((4, 3), fill)}, "optimizer": {"state": {"w": {"step": torch.tensor(fill)}}}}


def test_the_copy_stays_as_the_state_was():
    live, copy = state(2.0), HostCopy()
    staged = copy.stage(live)
    live["model"]["w"].zero_()
    live["optimizer"]["state"]["w"]["step"].zero_()
    assert (staged["model"]["w"] == 2).all()
    assert staged["optimizer"]["state"]["w"]["step"] == 2


def test_the_next_copy_lies_in_the_same_memory():
    copy = HostCopy()
    first = copy.stage(state(2.0))["model"]["w"]
    second = copy.stage(state(3.0))["model"]["w"]
    assert second.data_ptr() == first.data_ptr()
    assert (second == 3).all()


def test_a_tensor_that_a_later_state_adds_is_copied_too():
    """AdamW has its moments only after the first update."""
    copy = HostCopy()
    copy.stage({"model": {"w": torch.ones(2)}})
    staged = copy.stage({"model": {"w": torch.ones(2)}, "optimizer": {"w": torch.full((2,), 5.0)}})
    assert (staged["optimizer"]["w"] == 5).all()


def test_each_checkpoint_has_its_own_state(tmp_path):
    copy = HostCopy()
    for name, fill in (("one", 1.0), ("two", 2.0)):
        (tmp_path / name).mkdir()
        save_state(state(fill), tmp_path / name, copy=copy).result(60)
    for name, fill in (("one", 1.0), ("two", 2.0)):
        found = state(0.0)
        load_state(found, tmp_path / name)
        assert (found["model"]["w"] == fill).all(), name
