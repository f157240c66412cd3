"""Sums of score gradients are those of the losses that training uses."""

import numpy as np
import torch
from learner_tiny import make_groups

from lab.experiments.gradient.score_gradients import score_gradients
from learner.credit.types import Credit
from learner.losses import Clip, Mean, sequence_policy_loss
from learner.model.policy import load_policy
from learner.rows.batch import rows_of
from learner.rows.packing import pack_rows


def rows_and_advantages(seed):
    groups, rng = make_groups(seed), np.random.default_rng(seed)
    advantages = [[[float(rng.normal()) for _ in episode.steps] for episode in group] for group in groups]
    credits = [Credit(returns=of, values=None, baselines=of, deltas=of, raw_advantages=of, advantages=of,
                      states=[[""] * len(row) for row in of]) for of in advantages]
    return rows_of(groups, credits, policy_step=0), np.array([x for group in advantages for row in group for x in row])


def test_at_ratio_one_they_are_the_negative_gradient_of_the_sequence_loss(any_model_path):
    policy = load_policy(any_model_path)
    rows, advantages = rows_and_advantages(1)
    pack = pack_rows(rows, np.arange(len(rows.lengths)))
    logp, _ = policy(pack)
    loss, _ = sequence_policy_loss(logp, logp.detach(), pack.row, pack.advantages, clip=Clip(0.2, 0.2),
                                   mean=Mean("actions", len(rows), int(rows.response_lengths.sum())))
    expected = -torch.cat([one.flatten() for one in torch.autograd.grad(loss, list(policy.parameters()))])
    (found,) = score_gradients(policy, rows, [advantages / rows.response_lengths / len(rows)], token_budget=128)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-6 * float(expected.abs().max()) * len(rows))


def test_they_add_up_over_rows_and_depend_on_no_packing(model_path):
    """Float32 sums of a few hundred terms in another order differ by a few last bits of the largest."""
    policy = load_policy(model_path)
    rows, advantages = rows_and_advantages(2)
    parts = [np.where(np.arange(len(rows)) == row, advantages, 0.0) for row in range(len(rows))]
    whole, *single = score_gradients(policy, rows, [advantages, *parts], token_budget=10_000)
    (packed,) = score_gradients(policy, rows, [advantages], token_budget=60)
    scale = float(np.abs(single).sum(axis=0).max())
    np.testing.assert_allclose(np.sum(single, axis=0), whole, atol=1e-5 * scale)
    np.testing.assert_allclose(packed, whole, atol=1e-5 * scale)
