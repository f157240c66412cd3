"""Muon for many small matrices against PyTorch's, one at a time."""

import pytest
import torch

from learner.cold_start.muon import Muon, orthogonalize

SHAPES = [(8, 8), (20, 8), (8, 20), (8, 8)]


def test_singular_values_end_near_one():
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalize(torch.randn(5, 16, 24)))
    assert values.min() > 0.6
    assert values.max() < 1.3


def test_updates_equal_pytorchs_up_to_its_bfloat16():
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    theirs = [torch.nn.Parameter(weight.detach().clone()) for weight in ours]
    start = [weight.detach().clone() for weight in ours]
    optimizers = [Muon(ours, lr=0.02, weight_decay=0.1), torch.optim.Muon(theirs, lr=0.02, weight_decay=0.1)]
    for _ in range(3):
        for left, right in zip(ours, theirs, strict=True):
            left.grad = torch.randn_like(left)
            right.grad = left.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for left, right, before in zip(ours, theirs, start, strict=True):
        assert (left - right).norm() < 0.02 * (right - before).norm()


def test_a_weight_without_a_gradient_stays_as_it_is():
    weights = [torch.nn.Parameter(torch.ones(4, 4)), torch.nn.Parameter(torch.ones(4, 4))]
    weights[0].grad = torch.eye(4)
    Muon(weights, lr=0.1, weight_decay=0.1).step()
    assert torch.equal(weights[1], torch.ones(4, 4))
    assert not torch.equal(weights[0], torch.ones(4, 4))


def test_vectors_are_refused():
    with pytest.raises(ValueError, match="matrices only"):
        Muon([torch.nn.Parameter(torch.ones(3))], lr=0.1, weight_decay=0.0)
