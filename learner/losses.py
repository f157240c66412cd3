"""The policy objective: pure functions on flat response tokens.

Legend: N rows (actions), T response tokens of these rows one after another, `row` int64 [T] the row of each token.
Every loss is a sum divided by a denominator that the caller counts over the whole minibatch, so values add up over
micro-batches and ranks to what one large batch would give. Gradients flow through `logp` alone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

MAX_LOG_RATIO = 10.0
"""Above this the ratio is held, without gradient: exp would overflow long before the update meant anything."""
MAX_KL_EXPONENT = 20.0
"""Clamp inside the exponential: a clamp outside alone would multiply an infinite gradient by zero."""
MAX_KL = 10.0

Metrics = dict[str, Tensor]


class Clip(NamedTuple):
    """Where the ratio stops to count: outside [1 - low, 1 + high]; `dual` bounds the token loss where A < 0."""

    low: float
    high: float
    dual: float | None = None


def row_mean(values: Tensor, row: Tensor, num_rows: int) -> Tensor:
    """Mean per row: [T] to [N]. Every row has a token."""
    assert values.ndim == 1
    assert values.shape == row.shape
    zeros = values.new_zeros(num_rows)
    return zeros.index_add(0, row, values) / zeros.index_add(0, row, torch.ones_like(values))


def truncated_weights(proximal: Tensor, sampler: Tensor, row: Tensor, num_rows: int, cap: float) -> Tensor:
    """[N] weights min(exp(mean log π_proximal - log π_sampler), cap) for rows that an older policy sampled.

    The clipped ratio is taken against the proximal policy (the learner's, at the start of the step); this weight, which
    carries no gradient, corrects for who really sampled (decoupled objective, arXiv 2505.24298 equation 5, with the
    truncation of arXiv 1802.01561). A row with a non-finite sampler logprob cannot be corrected and weighs nothing.
    """
    mean = row_mean((proximal - sampler).detach(), row, num_rows)
    return torch.where(torch.isfinite(mean), mean.clamp(max=MAX_LOG_RATIO).exp().clamp(max=cap), 0.0)


def sequence_policy_loss(logp: Tensor, old: Tensor, row: Tensor, advantages: Tensor, *, clip: Clip,
                         num_rows: int, weights: Tensor | None = None) -> tuple[Tensor, Metrics]:
    """Clipped loss on s = exp(mean token log-ratio) per action (GSPO, arXiv 2507.18071; GAGPO section 3.2).

    L = Σ_rows w max(-s A, -clip(s, 1 - low, 1 + high) A) / num_rows. logp, old, row [T]; advantages, weights [N];
    num_rows counts the rows of the whole minibatch. Metrics are shares of it, summable like the loss.
    """
    assert logp.shape == old.shape == row.shape
    assert advantages.ndim == 1
    log_ratio = row_mean(logp - old, row, len(advantages)).clamp(max=MAX_LOG_RATIO)
    return _clipped(log_ratio, advantages, clip._replace(dual=None), num_rows, weights)


def token_policy_loss(logp: Tensor, old: Tensor, row: Tensor, advantages: Tensor, *, clip: Clip,
                      num_tokens: int, weights: Tensor | None = None) -> tuple[Tensor, Metrics]:
    """PPO's clipped loss per token (arXiv 1707.06347 equation 7), dual clip where A < 0 (arXiv 1912.09729 equation 5).

    L = Σ_tokens w max(-ρ A, -clip(ρ) A) / num_tokens, held at -dual A from above where A < 0. Shapes as above;
    num_tokens counts the response tokens of the whole minibatch.
    """
    assert logp.shape == old.shape == row.shape
    assert advantages.ndim == 1
    log_ratio = (logp - old).clamp(max=MAX_LOG_RATIO)
    return _clipped(log_ratio, advantages[row], clip, num_tokens, None if weights is None else weights[row])


def _clipped(log_ratio: Tensor, advantages: Tensor, clip: Clip, denominator: int,
             weights: Tensor | None) -> tuple[Tensor, Metrics]:
    ratio = log_ratio.exp()
    plain, clipped = -ratio * advantages, -ratio.clamp(1 - clip.low, 1 + clip.high) * advantages
    loss = torch.maximum(plain, clipped)
    if clip.dual is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -clip.dual * advantages), loss)
    if weights is not None:
        loss = loss * weights
    metrics = {
        "ratio_mean": ratio.detach().sum() / denominator,
        "clip_fraction": (clipped > plain).detach().float().sum() / denominator,
    }
    return loss.sum() / denominator, metrics


def kl_loss(logp: Tensor, reference: Tensor, *, num_tokens: int) -> Tensor:
    """Token mean of the k3 estimate of KL(π, π_ref): exp(d) - d - 1, d = log π_ref - log π (joschu.net/blog/kl-approx).

    logp, reference [T]. Each token's value is clamped to ±10.
    """
    assert logp.shape == reference.shape
    d = (reference - logp).clamp(-MAX_KL_EXPONENT, MAX_KL_EXPONENT)
    return (d.exp() - d - 1).clamp(-MAX_KL, MAX_KL).sum() / num_tokens


def entropy_mean(entropy: Tensor, *, num_tokens: int) -> Tensor:
    """Token mean of the entropies [T], in nats; the bonus subtracts it."""
    return entropy.sum() / num_tokens
