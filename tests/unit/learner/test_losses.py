"""Two actions of three and two tokens, worked by hand, and gradients against autograd of the formulas as written."""

import pytest
import torch

from learner.losses import (
    Clip,
    entropy_mean,
    kl_loss,
    row_mean,
    sequence_policy_loss,
    token_policy_loss,
    truncated_weights,
)

ROW = torch.tensor([0, 0, 0, 1, 1])
OLD = torch.tensor([-0.6, -0.9, -0.5, -1.5, -0.4], dtype=torch.float64)
REF = torch.tensor([-0.7, -0.8, -0.5, -1.4, -0.4], dtype=torch.float64)
A = torch.tensor([1.5, -0.7], dtype=torch.float64)
CLIP = Clip(0.2, 0.2, dual=3.0)


@pytest.fixture
def logp():
    return torch.tensor([-0.5, -1.0, -0.2, -2.0, -0.1], dtype=torch.float64, requires_grad=True)


def test_sequence_ratios_and_loss(logp):
    ratios = row_mean(logp - OLD, ROW, 2).exp()
    assert ratios.tolist() == pytest.approx([1.10517, 0.90484], abs=5e-6)
    loss, metrics = sequence_policy_loss(logp, OLD, ROW, A, clip=CLIP, num_rows=2)
    assert loss.item() == pytest.approx(-0.512185, abs=5e-7)
    assert metrics["ratio_mean"].item() == pytest.approx((1.10517 + 0.90484) / 2, abs=5e-6)
    assert metrics["clip_fraction"] == 0


def test_sequence_clip_fraction_with_the_clip_of_gspo(logp):
    """At 3e-4/4e-4 both rows are clipped, and a clipped row has no gradient."""
    loss, metrics = sequence_policy_loss(logp, OLD, ROW, A, clip=Clip(3e-4, 4e-4), num_rows=2)
    assert metrics["clip_fraction"] == 1
    loss.backward()
    assert logp.grad.abs().max() == 0


def test_token_loss(logp):
    loss, metrics = token_policy_loss(logp, OLD, ROW, A, clip=CLIP, num_tokens=5)
    assert loss.item() == pytest.approx(-0.662022, abs=5e-7)
    assert metrics["clip_fraction"].item() == pytest.approx(2 / 5)


def test_dual_clip_bounds_a_bad_action_that_became_likely():
    """ρ = e² = 7.39 with A = -0.7: 5.17 without, 3 x 0.7 with; beyond it there is no gradient."""
    logp = torch.tensor([-0.5], dtype=torch.float64, requires_grad=True)
    old, row, bad = logp.detach() - 2, torch.tensor([0]), torch.tensor([-0.7], dtype=torch.float64)
    free, _ = token_policy_loss(logp, old, row, bad, clip=Clip(0.2, 0.2), num_tokens=1)
    held, _ = token_policy_loss(logp, old, row, bad, clip=CLIP, num_tokens=1)
    assert (free.item(), held.item()) == pytest.approx((0.7 * torch.e**2, 2.1))
    held.backward()
    assert logp.grad.item() == 0


def test_kl(logp):
    assert kl_loss(logp, REF, num_tokens=5).item() == pytest.approx(0.068778, abs=5e-7)


def test_kl_of_a_vanished_token_is_held_with_a_finite_gradient():
    logp = torch.tensor([-500.0], requires_grad=True)
    loss = kl_loss(logp, torch.tensor([-0.1]), num_tokens=1)
    loss.backward()
    assert loss.item() == 10
    assert torch.isfinite(logp.grad).all()


def test_a_log_ratio_beyond_the_cap_stays_finite():
    logp = torch.tensor([0.0, 0.0], requires_grad=True)
    loss, _ = sequence_policy_loss(logp, torch.tensor([-300.0, -300.0]), torch.tensor([0, 0]), torch.tensor([-1.0]),
                                   clip=CLIP, num_rows=1)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(logp.grad).all()


def test_gradients_are_those_of_the_plain_formulas(logp):
    """Written out row by row and token by token with scalars; no shared helper."""
    mine = (sequence_policy_loss(logp, OLD, ROW, A, clip=CLIP, num_rows=2)[0]
            + token_policy_loss(logp, OLD, ROW, A, clip=CLIP, num_tokens=5)[0]
            + 0.01 * kl_loss(logp, REF, num_tokens=5))
    (found,) = torch.autograd.grad(mine, logp)
    plain = 0
    for tokens, a in (([0, 1, 2], 1.5), ([3, 4], -0.7)):
        s = torch.exp(sum(logp[t] - OLD[t] for t in tokens) / len(tokens))
        plain = plain + max(-s * a, -min(max(s, 0.8), 1.2) * a) / 2
        for t in tokens:
            rho = torch.exp(logp[t] - OLD[t])
            term = max(-rho * a, -min(max(rho, 0.8), 1.2) * a)
            plain = plain + (min(term, -3 * a) if a < 0 else term) / 5
            plain = plain + 0.01 * (torch.exp(REF[t] - logp[t]) - (REF[t] - logp[t]) - 1) / 5
    (expected,) = torch.autograd.grad(plain, logp)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def test_the_sequence_gradient_equals_the_stop_gradient_token_form(logp):
    """GSPO's code: token log-ratio = stopgrad(log s) + logp - stopgrad(logp), mean over tokens, then over rows."""
    (found,) = torch.autograd.grad(sequence_policy_loss(logp, OLD, ROW, A, clip=CLIP, num_rows=2)[0], logp)
    log_s = row_mean(logp - OLD, ROW, 2).detach()
    ratio = (log_s[ROW] + logp - logp.detach()).exp()
    per_token = torch.maximum(-ratio * A[ROW], -ratio.clamp(0.8, 1.2) * A[ROW])
    (expected,) = torch.autograd.grad(row_mean(per_token, ROW, 2).mean(), logp)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def test_parts_add_up_under_a_global_denominator(logp):
    """Row 0 alone plus row 1 alone, each over the two rows (five tokens) of the whole, is the whole."""
    first, second = slice(0, 3), slice(3, 5)
    zero = torch.zeros(3, dtype=torch.int64)
    for loss, name in ((sequence_policy_loss, {"num_rows": 2}), (token_policy_loss, {"num_tokens": 5})):
        whole = loss(logp, OLD, ROW, A, clip=CLIP, **name)[0]
        parts = [loss(logp[s], OLD[s], zero[: s.stop - s.start], A[i : i + 1], clip=CLIP, **name)[0]
                 for i, s in enumerate((first, second))]
        assert sum(parts).item() == pytest.approx(whole.item(), abs=1e-15)
    assert entropy_mean(torch.tensor([1.0, 3.0]), num_tokens=4) == 1


def test_truncated_weights():
    """Means of the log-ratio .1, log 3 and a non-finite one: e^.1, the cap 2, nothing."""
    row = torch.tensor([0, 0, 1, 2])
    proximal = torch.tensor([-1.0, -1.0, -0.5, -1.0])
    sampler = torch.tensor([-1.2, -1.0, -0.5 - 1.0986123, float("-inf")])
    weights = truncated_weights(proximal, sampler, row, 3, cap=2.0)
    assert weights.tolist() == pytest.approx([1.1051709, 2.0, 0.0])


def test_weights_scale_a_rows_loss(logp):
    alone, _ = sequence_policy_loss(logp, OLD, ROW, A, clip=CLIP, num_rows=2, weights=torch.tensor([0.5, 0.0]))
    assert alone.item() == pytest.approx(-0.5 * 1.5 * 1.1051709 / 2)
