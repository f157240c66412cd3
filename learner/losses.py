"""The objectives of policy and critic: pure functions on flat response tokens.

Legend: N rows (actions), T response tokens of these rows one after another, `row` int64 [T] the row of each token.
Every loss is a sum divided by a denominator that the caller counts over the entire minibatch, so values add up over
micro-batches and ranks to what one large batch would give. Gradients flow only through `logp`, `values` and `entropy`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

MAX_LOG_RATIO = 10.0
"""Log-ratios above this value are clamped, without gradient, so that exp does not overflow."""
MAX_KL_EXPONENT = 20.0
"""Bound inside the exponential. A clamp only outside would multiply an infinite gradient by zero."""
MAX_KL = 10.0
MIN_POWER = 1e-6
"""A power below this counts as 0, the geometric mean."""

Metrics = dict[str, Tensor]
Correction = Literal["decoupled", "coupled", "none"]
"""The treatment of tokens that another policy sampled: see off_policy."""


class Clip(NamedTuple):
    """Bounds of the ratio, [1 - low, 1 + high]. `dual` bounds the token loss if A < 0."""

    low: float
    high: float
    dual: float | None = None


class Mean(NamedTuple):
    """The mean of the policy term: over the actions of a minibatch, each the mean of its tokens, or over all tokens."""

    over: Literal["actions", "tokens"]
    num_rows: int
    """Number of rows of the entire minibatch, on all ranks."""
    num_tokens: int
    """Number of response tokens of the entire minibatch, on all ranks."""

    def shares(self, lengths: Tensor) -> Tensor:
        """Returns the weight of each row (all its tokens together) in the mean, [N]. The minibatch's weights sum to 1.

        `lengths` [N]: tokens of each row.
        """
        return lengths / self.num_tokens if self.over == "tokens" else torch.full_like(lengths, 1 / self.num_rows)


def row_lengths(row: Tensor, like: Tensor, num_rows: int) -> Tensor:
    """Returns the number of tokens of each row, [N], in the dtype of `like`. row [T]."""
    return like.new_zeros(num_rows).index_add(0, row, torch.ones_like(like))


def row_mean(values: Tensor, row: Tensor, num_rows: int) -> Tensor:
    """Returns the mean of `values` [T] per row, [N]. Every row must have a token."""
    assert values.ndim == 1
    assert values.shape == row.shape
    return values.new_zeros(num_rows).index_add(0, row, values) / row_lengths(row, values.detach(), num_rows)


class OffPolicy(NamedTuple):
    """The two ways in which the policy that sampled a token enters its loss."""

    old: Tensor
    """[T] logprobs that the ratio is taken against."""
    weights: Tensor | None
    """[T] weights of the tokens' losses, without gradient. None: all are 1."""


def truncated_weights(proximal: Tensor, sampler: Tensor, cap: float) -> Tensor:
    """Returns weights ρ = min(π_proximal / π_sampler, cap) of single tokens [T], without gradient.

    Source: arXiv 1802.01561, equation 1. A token whose sampler logprob is not finite cannot be corrected and weighs 0.
    """
    log_ratio = (proximal - sampler).detach()
    return torch.where(torch.isfinite(log_ratio), log_ratio.clamp(max=MAX_LOG_RATIO).exp().clamp(max=cap), 0.0)


def off_policy(proximal: Tensor, sampler: Tensor, corrected: Tensor, *, how: Correction, cap: float) -> OffPolicy:
    """Returns how tokens [T] of another policy (`corrected`, bool) enter the loss. Other tokens are unchanged.

    decoupled: the ratio stays π / π_proximal, and the token's loss is multiplied by a truncated importance weight
    (arXiv 2505.24298, equation 5, with the truncation of arXiv 1802.01561). coupled: the ratio is π / π_sampler, so
    the clip bounds both at once (arXiv 1707.06347, equation 7). none: as if the proximal policy had sampled them.
    Both corrections give a token without a finite sampler logprob the weight 0.
    """
    assert proximal.shape == sampler.shape == corrected.shape
    if how == "none" or not bool(corrected.any()):
        return OffPolicy(proximal, None)
    if how == "decoupled":
        return OffPolicy(proximal, torch.where(corrected, truncated_weights(proximal, sampler, cap), 1.0))
    finite = torch.isfinite(sampler)
    return OffPolicy(torch.where(corrected & finite, sampler, proximal), (finite | ~corrected).to(proximal))


def power_mean(log_ratios: Tensor, row: Tensor, num_rows: int, power: float) -> tuple[Tensor, Tensor]:
    """Returns the logarithm of the power mean (mean r^p)^(1/p) of each row's token ratios r, [N], and the gradient that
    it gives to each token's logarithm, [T] (HölderPO, arXiv 2605.12058).

    log_ratios, row [T]. |p| below 1e-6 is the geometric mean, whose tokens all have the gradient 1 / length.
    """
    lengths = row_lengths(row, log_ratios.detach(), num_rows)
    if abs(power) < MIN_POWER:
        return row_mean(log_ratios, row, num_rows), (1 / lengths)[row]
    scaled = power * log_ratios.double()  # a small power divides the rounding of a float32
    largest = scaled.new_full((num_rows,), -torch.inf).scatter_reduce(0, row, scaled.detach(), "amax")
    terms = (scaled - largest[row]).exp()
    sums = terms.new_zeros(num_rows).index_add(0, row, terms)
    mean = (sums.log() + largest - lengths.double().log()) / power
    return mean.to(log_ratios), (terms / sums[row]).detach().to(log_ratios)


def sequence_policy_loss(logp: Tensor, old: Tensor, row: Tensor, advantages: Tensor, *, clip: Clip, mean: Mean,
                         weights: Tensor | None = None, power: float = 0.0) -> tuple[Tensor, Metrics]:
    """Returns the clipped loss on one ratio s per action: the power mean of its token ratios, with power 0
    s = exp(mean token log-ratio) (GSPO, arXiv 2507.18071; GAGPO section 3.2). `clip.dual` is not used.

    L = mean over rows of max(-s A, -clip(s, 1 - low, 1 + high) A). logp, old, row, weights [T]; advantages [N].
    With weights it is GSPO's token form: each token has the value of s and its own gradient, and a row's loss is the
    mean over its tokens of w max(-s A, -clip(s) A). Metrics are this call's part of the same mean and add up like the
    loss.
    """
    assert logp.shape == old.shape == row.shape
    assert advantages.ndim == 1
    log_ratio, gradient = power_mean(logp - old, row, len(advantages), power)
    lengths = row_lengths(row, old, len(advantages))
    shares, clip = mean.shares(lengths), clip._replace(dual=None)
    if weights is None:
        return _clipped(log_ratio.clamp(max=MAX_LOG_RATIO), advantages, clip, shares, None)
    own = logp - logp.detach()
    if abs(power) >= MIN_POWER:
        own = own * gradient * lengths[row]
    of_tokens = (log_ratio.detach()[row] + own).clamp(max=MAX_LOG_RATIO)
    return _clipped(of_tokens, advantages[row], clip, (shares / lengths)[row], weights)


def token_policy_loss(logp: Tensor, old: Tensor, row: Tensor, advantages: Tensor, *, clip: Clip, mean: Mean,
                      weights: Tensor | None = None) -> tuple[Tensor, Metrics]:
    """Returns PPO's clipped loss per token (arXiv 1707.06347, equation 7), with dual clip (arXiv 1912.09729, eq. 5).

    L = mean over tokens of w max(-ρ A, -clip(ρ) A), at most -dual A if A < 0. A mean over actions takes each row's own
    mean first. logp, old, row, advantages, weights [T].
    """
    assert logp.shape == old.shape == row.shape == advantages.shape
    lengths = row_lengths(row, old, int(row[-1]) + 1)
    shares = (mean.shares(lengths) / lengths)[row]
    log_ratio = (logp - old).clamp(max=MAX_LOG_RATIO)
    return _clipped(log_ratio, advantages, clip, shares, weights)


def _clipped(log_ratio: Tensor, advantages: Tensor, clip: Clip, shares: Tensor,
             weights: Tensor | None) -> tuple[Tensor, Metrics]:
    ratio = log_ratio.exp()
    plain, clipped = -ratio * advantages, -ratio.clamp(1 - clip.low, 1 + clip.high) * advantages
    loss = torch.maximum(plain, clipped)
    if clip.dual is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -clip.dual * advantages), loss)
    if weights is not None:
        loss = loss * weights
    metrics = {
        "ratio_mean": (ratio.detach() * shares).sum(),
        "clip_fraction": ((clipped > plain).detach() * shares).sum(),
    }
    return (loss * shares).sum(), metrics


def value_loss(values: Tensor, before: Tensor, returns: Tensor, *, clip: float, count: int) -> Tensor:
    """Returns half the mean of max((V - R)², (clip(V, V_before - clip, V_before + clip) - R)²) over `count` values.

    All tensors [T]; V_before: values before the step. A value that has moved further than `clip` towards its return has
    no gradient; a value that has moved away from it has the full gradient (arXiv 2005.12729, section 3).
    """
    assert values.shape == before.shape == returns.shape
    clipped = before + (values - before).clamp(-clip, clip)
    return 0.5 * torch.maximum((values - returns) ** 2, (clipped - returns) ** 2).sum() / count


def token_gae(values: Tensor, row: Tensor, scores: Tensor, *, gamma: float, lam: float) -> Tensor:
    """Returns advantages [T] within each row (arXiv 1506.02438, equation 16). A row's score rewards its last token.

    δ_k = r_k + γ V_{k+1} - V_k, A_k = δ_k + γλ A_{k+1}, V and A 0 after the last token. values, row [T]; scores [N].
    γ = λ = 1 gives A_k = score - V_k.
    """
    assert values.shape == row.shape
    num_rows, lengths = len(scores), torch.bincount(row, minlength=len(scores))
    last = lengths.cumsum(0) - 1
    following = torch.cat([values[1:], values.new_zeros(1)]) * gamma
    following[last] = scores.to(values)
    column = torch.arange(len(row), device=row.device) - (last - lengths + 1)[row]
    out = values.new_zeros(num_rows, int(lengths.max()))
    out[row, column] = following - values
    for k in range(out.shape[1] - 2, -1, -1):  # the zeros after a row's end add nothing
        out[:, k] += gamma * lam * out[:, k + 1]
    return out[row, column]


def first_tokens(row: Tensor, num_rows: int) -> Tensor:
    """Returns the position of each row's first token, int64 [N]. row [T]: tokens row by row, each row has one."""
    lengths = torch.bincount(row, minlength=num_rows)
    return lengths.cumsum(0) - lengths


def turn_gae(values: Tensor, rewards: Tensor, ends: Tensor, *, gamma: float, lam: float) -> Tensor:
    """Returns advantages [N] over the turns of each episode (arXiv 1506.02438, equation 16, on turns).

    δ_h = r_h + γ V_{h+1} - V_h, A_h = δ_h + γλ A_{h+1}, V and A 0 after an episode's last turn. values, rewards and
    ends [N]: turns episode by episode, and whether a turn is the last one.
    """
    assert values.shape == rewards.shape == ends.shape
    out, after, total = values.new_zeros(len(values)), 0.0, 0.0
    rows = zip(values.tolist(), rewards.tolist(), ends.tolist(), strict=True)
    for h, (value, reward, last) in reversed(list(enumerate(rows))):
        if last:
            after = total = 0.0
        total = reward + gamma * after - value + gamma * lam * total
        out[h], after = total, value
    return out


def kl_loss(logp: Tensor, reference: Tensor, *, num_tokens: int) -> Tensor:
    """Returns the token mean of the k3 estimate of KL(π, π_ref), exp(d) - d - 1 with d = log π_ref - log π.

    Source: joschu.net/blog/kl-approx. logp, reference [T]. Each token's value is clamped to ±10.
    """
    assert logp.shape == reference.shape
    d = (reference - logp).clamp(-MAX_KL_EXPONENT, MAX_KL_EXPONENT)
    return (d.exp() - d - 1).clamp(-MAX_KL, MAX_KL).sum() / num_tokens


def imitation_loss(logp: Tensor, *, num_tokens: int) -> Tensor:
    """Returns the token mean of -log π over demonstrated answers. logp [T]."""
    return -logp.sum() / num_tokens


def distilled_advantages(credit: Tensor, policy: Tensor, teacher: Tensor, *, weight: float,
                         credit_weight: float) -> Tensor:
    """Returns credit_weight A + weight (log π_teacher - log π) of each sampled token, [T], without gradient.

    The second term is the negative of a one-sample estimate of KL(π, π_teacher), the reverse KL. All tensors [T].
    """
    assert credit.shape == policy.shape == teacher.shape
    return (credit_weight * credit + weight * (teacher - policy)).detach()


def entropy_mean(entropy: Tensor, *, num_tokens: int) -> Tensor:
    """Returns the token mean of the entropies [T] in nats, which the entropy bonus subtracts from the loss."""
    return entropy.sum() / num_tokens
