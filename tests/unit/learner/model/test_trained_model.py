"""Updates that are taken, and updates that are skipped."""


import math
from copy import deepcopy

import pytest
import torch
from torch import nn

from learner.model.trained_model import MAX_SKIPPED, MOMENTS, HostAdamW, TrainedModel
from services.config.tree import LearnerSection
from services.errors import LearnerFault


def trained_model():
    return TrainedModel(nn.Linear(2, 1, bias=False), LearnerSection(grad_clip=1.0), lr=0.5)


def backward(made, gradient):
    (made.model.weight * torch.tensor(gradient)).sum().backward()


def test_an_update_reports_the_norm_before_clipping_and_clears_the_gradient():
    made = trained_model()
    before = made.model.weight.detach().clone()
    backward(made, [3.0, 4.0])
    assert made.update() == pytest.approx(5)
    assert made.model.weight.grad is None
    assert (made.model.weight - before).abs().min() > 0.4  # Adam's first step is the learning rate, whatever the norm


def test_a_gradient_that_is_not_finite_moves_nothing_and_three_in_a_row_are_a_fault():
    made = trained_model()
    before = made.model.weight.detach().clone()
    for _ in range(MAX_SKIPPED - 1):
        backward(made, [math.nan, 1.0])
        assert math.isnan(made.update())
    assert torch.equal(made.model.weight, before)
    backward(made, [1.0, 1.0])
    made.update()
    assert made.skipped_in_a_row == 0
    for _ in range(MAX_SKIPPED - 1):
        backward(made, [math.inf, 1.0])
        made.update()
    backward(made, [math.inf, 1.0])
    with pytest.raises(LearnerFault, match="not finite in 3 updates in a row"):
        made.update()


def test_a_checkpoint_before_the_first_update_that_is_not_skipped_changes_none_of_the_next():
    plain, saved, resumed = trained_model(), trained_model(), trained_model()
    for made in (saved, resumed):
        made.model.load_state_dict(plain.model.state_dict())
    resumed.load(deepcopy(saved.state()))
    for made in (plain, saved, resumed):
        for gradient in ([3.0, 4.0], [0.1, -0.2]):
            backward(made, gradient)
            made.update()
    assert torch.equal(saved.model.weight, plain.model.weight)
    assert torch.equal(resumed.model.weight, plain.model.weight)


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
