"""Moments in host memory, which the device may have no room for."""

import pytest
import torch
from torch import nn

from learner.model.trainee import MOMENTS, HostAdamW


def test_loaded_moments_never_pass_through_the_device():
    """torch's meta device has room for nothing: what passes through it is lost."""
    weight = nn.Parameter(torch.ones(3))
    before = HostAdamW([weight])
    weight.grad = torch.tensor([1.0, 2.0, 3.0])
    before.step()
    after = HostAdamW([nn.Parameter(torch.ones(3, device="meta"))])
    after.load_state_dict(before.state_dict())
    (found,), (expected,) = after.state.values(), before.state.values()
    assert found["step"] == 1
    for name in MOMENTS:
        assert torch.equal(found[name], expected[name])


def test_a_learner_on_the_cpu_of_a_machine_with_gpus_leaves_them_alone(monkeypatch):
    """To wait for a GPU takes half a GB of its memory for a context."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: pytest.fail("a GPU was used"))
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    HostAdamW([weight]).step()
    assert (weight < 1).all()
