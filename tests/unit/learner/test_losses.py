"""Two actions of three and two tokens, worked by hand, and gradients against autograd of the formulas as written."""

import math

import pytest
import torch

from learner.losses import (
    Clip,
    Mean,
    entropy_mean,
    kl_loss,
    off_policy,
    power_mean,
    row_mean,
    sequence_policy_loss,
    token_gae,
    token_policy_loss,
    truncated_weights,
    turn_gae,
    value_loss,
)
from services.config.sections import LossSection

ROW = torch.tensor([0, 0, 0, 1, 1])
OLD = torch.tensor([-0.6, -0.9, -0.5, -1.5, -0.4], dtype=torch.float64)
REF = torch.tensor([-0.7, -0.8, -0.5, -1.4, -0.4], dtype=torch.float64)
A = torch.tensor([1.5, -0.7], dtype=torch.float64)
CLIP = Clip(0.2, 0.2, dual=3.0)
ACTIONS, TOKENS = Mean("actions", 2, 5), Mean("tokens", 2, 5)


def sequence(logp, mean=ACTIONS, clip=CLIP, **weights):
    return sequence_policy_loss(logp, OLD, ROW, A, clip=clip, mean=mean, **weights)


def token(logp, mean=TOKENS, **weights):
    return token_policy_loss(logp, OLD, ROW, A[ROW], clip=CLIP, mean=mean, **weights)


@pytest.fixture
def logp():
    return torch.tensor([-0.5, -1.0, -0.2, -2.0, -0.1], dtype=torch.float64, requires_grad=True)


def test_sequence_ratios_and_loss(logp):
    ratios = row_mean(logp - OLD, ROW, 2).exp()
    assert ratios.tolist() == pytest.approx([1.10517, 0.90484], abs=5e-6)
    loss, metrics = sequence(logp)
    assert loss.item() == pytest.approx(-0.512185, abs=5e-7)
    assert metrics["ratio_mean"].item() == pytest.approx((1.10517 + 0.90484) / 2, abs=5e-6)
    assert metrics["clip_fraction"] == 0


def test_sequence_clip_fraction_with_the_clip_of_gspo(logp):
    """At 3e-4/4e-4 both rows are clipped, and a clipped row has no gradient."""
    loss, metrics = sequence(logp, clip=Clip(3e-4, 4e-4))
    assert metrics["clip_fraction"] == 1
    loss.backward()
    assert logp.grad.abs().max() == 0


@pytest.mark.parametrize("weights", [None, torch.tensor([1.0, 0.5, 2.0, 1.0, 0.3], dtype=torch.float64)])
def test_a_power_of_zero_is_the_sequence_ratio_and_small_powers_approach_it(logp, weights):
    loss, metrics = sequence(logp, weights=weights)
    gradient, = torch.autograd.grad(loss, logp)
    for power, gap in ((0.0, 0.0), (1e-7, 0.0), (1e-4, 1e-4), (-1e-4, 1e-4)):
        other, its_metrics = sequence(logp, weights=weights, power=power)
        assert other.item() == pytest.approx(loss.item(), abs=gap)
        assert its_metrics["ratio_mean"].item() == pytest.approx(metrics["ratio_mean"].item(), abs=gap)
        assert torch.autograd.grad(other, logp)[0].tolist() == pytest.approx(gradient.tolist(), abs=gap)


@pytest.mark.parametrize("power", [1.0, 2.0, -1.0, -2.0])
def test_a_power_mean_of_ratios_and_its_gradient(logp, power):
    """Against the formula as written: (mean r^p)^(1/p) of e^.1, e^-.1, e^.3 and of e^-.5, e^.3."""
    rows = [torch.tensor(row, dtype=torch.float64).exp() for row in ((0.1, -0.1, 0.3), (-0.5, 0.3))]
    means = [float((row**power).mean() ** (1 / power)) for row in rows]
    log_mean, shares = power_mean(logp - OLD, ROW, 2, power)
    assert log_mean.exp().tolist() == pytest.approx(means)
    assert shares.tolist() == pytest.approx([float(r**power / (row**power).sum()) for row in rows for r in row])
    loss, _ = sequence(logp, clip=Clip(0.9, 9.0), power=power)
    assert loss.item() == pytest.approx(-(1.5 * means[0] - 0.7 * means[1]) / 2)
    plain, = torch.autograd.grad(loss, logp)
    weighted, _ = sequence(logp, clip=Clip(0.9, 9.0), power=power, weights=torch.ones(5, dtype=torch.float64))
    assert weighted.item() == pytest.approx(loss.item())
    assert torch.autograd.grad(weighted, logp)[0].tolist() == pytest.approx(plain.tolist())


def test_a_power_mean_of_extreme_ratios_is_finite_in_single_precision():
    """The largest of two decides at a large power, the smallest at a negative one, each over 2^(1/p)."""
    log_ratios, row = torch.tensor([80.0, -80.0]), torch.tensor([0, 0])
    assert power_mean(log_ratios, row, 1, 10.0)[0].item() == pytest.approx(80 - math.log(2) / 10)
    assert power_mean(log_ratios, row, 1, -10.0)[0].item() == pytest.approx(-80 + math.log(2) / 10)
    assert power_mean(torch.tensor([0.3, 0.1]), row, 1, 1e-5)[0].item() == pytest.approx(0.2, abs=1e-6)


def test_token_loss(logp):
    loss, metrics = token(logp)
    assert loss.item() == pytest.approx(-0.662022, abs=5e-7)
    assert metrics["clip_fraction"].item() == pytest.approx(2 / 5)


def test_rows_averaged_over_tokens_and_tokens_over_actions_by_hand(logp):
    """Row terms -1.657756, .633386 weighed by 3 and 2 tokens; token terms -4.815012 / 3 and 1.504901 / 2, halved."""
    assert sequence(logp, TOKENS)[0].item() == pytest.approx(-0.741299, abs=5e-7)
    loss, metrics = token(logp, ACTIONS)
    assert loss.item() == pytest.approx(-0.426277, abs=5e-7)
    assert metrics["clip_fraction"].item() == pytest.approx((1 / 3 + 1 / 2) / 2)


def test_dual_clip_bounds_a_bad_action_that_became_likely():
    """ρ = e² = 7.39 with A = -0.7: 5.17 without, 3 x 0.7 with; beyond it there is no gradient."""
    logp = torch.tensor([-0.5], dtype=torch.float64, requires_grad=True)
    old, row, bad = logp.detach() - 2, torch.tensor([0]), torch.tensor([-0.7], dtype=torch.float64)
    free, _ = token_policy_loss(logp, old, row, bad, clip=Clip(0.2, 0.2), mean=Mean("tokens", 1, 1))
    held, _ = token_policy_loss(logp, old, row, bad, clip=CLIP, mean=Mean("tokens", 1, 1))
    assert (free.item(), held.item()) == pytest.approx((0.7 * torch.e**2, 2.1))
    held.backward()
    assert logp.grad.item() == 0


def test_the_kl_loss_by_hand(logp):
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
                                   clip=CLIP, mean=Mean("actions", 1, 2))
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(logp.grad).all()


def plain_policy_loss(logp, ratio, over):
    """Computes the loss row by row and token by token with scalars, without shared code."""
    total = 0
    for tokens, a in (([0, 1, 2], 1.5), ([3, 4], -0.7)):
        share = len(tokens) / 5 if over == "tokens" else 1 / 2
        s = torch.exp(sum(logp[t] - OLD[t] for t in tokens) / len(tokens))
        if ratio == "sequence":
            total = total + share * max(-s * a, -min(max(s, 0.8), 1.2) * a)
            continue
        for t in tokens:
            rho = torch.exp(logp[t] - OLD[t])
            term = max(-rho * a, -min(max(rho, 0.8), 1.2) * a)
            total = total + share / len(tokens) * (min(term, -3 * a) if a < 0 else term)
    return total


@pytest.mark.parametrize("mean", [ACTIONS, TOKENS], ids=lambda mean: mean.over)
@pytest.mark.parametrize("loss", [sequence, token])
def test_gradients_are_those_of_the_plain_formulas(logp, loss, mean):
    (found,) = torch.autograd.grad(loss(logp, mean)[0], logp)
    (expected,) = torch.autograd.grad(plain_policy_loss(logp, loss.__name__, mean.over), logp)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def test_the_gradient_of_kl_is_that_of_the_plain_formula(logp):
    (found,) = torch.autograd.grad(kl_loss(logp, REF, num_tokens=5), logp)
    plain = sum(torch.exp(REF[t] - logp[t]) - (REF[t] - logp[t]) - 1 for t in range(5)) / 5
    torch.testing.assert_close(found, torch.autograd.grad(plain, logp)[0], atol=1e-12, rtol=0)


def test_the_sequence_gradient_equals_the_stop_gradient_token_form(logp):
    """GSPO's code: token log-ratio = stopgrad(log s) + logp - stopgrad(logp), mean over tokens, then over rows."""
    (found,) = torch.autograd.grad(sequence(logp)[0], logp)
    log_s = row_mean(logp - OLD, ROW, 2).detach()
    ratio = (log_s[ROW] + logp - logp.detach()).exp()
    per_token = torch.maximum(-ratio * A[ROW], -ratio.clamp(0.8, 1.2) * A[ROW])
    (expected,) = torch.autograd.grad(row_mean(per_token, ROW, 2).mean(), logp)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("mean", [ACTIONS, TOKENS], ids=lambda mean: mean.over)
def test_parts_add_up_under_global_denominators(logp, mean):
    """Row 0 alone plus row 1 alone, each over the two rows and five tokens of the whole, is the whole."""
    first, second = slice(0, 3), slice(3, 5)
    zero = torch.zeros(3, dtype=torch.int64)
    for loss, advantages in ((sequence_policy_loss, A), (token_policy_loss, A[ROW])):
        whole = loss(logp, OLD, ROW, advantages, clip=CLIP, mean=mean)[0]
        parts = [loss(logp[s], OLD[s], zero[: s.stop - s.start], advantages[s] if loss is token_policy_loss
                      else A[i : i + 1], clip=CLIP, mean=mean)[0] for i, s in enumerate((first, second))]
        assert sum(parts).item() == pytest.approx(whole.item(), abs=1e-14)
    assert entropy_mean(torch.tensor([1.0, 3.0]), num_tokens=4) == 1


PROXIMAL = torch.tensor([-1.0, -1.0, -0.5, -1.0], dtype=torch.float64)
SAMPLER = torch.tensor([-1.2, -1.0, -0.5 - 1.0986123, float("-inf")], dtype=torch.float64)


def test_truncated_weights_are_of_single_tokens():
    """Ratios e^.2, 1, 3 and one of a sampler's logprob that is not finite; the cap is 2."""
    weights = truncated_weights(PROXIMAL.requires_grad_(), SAMPLER, cap=2.0)
    assert weights.tolist() == pytest.approx([1.2214028, 1.0, 2.0, 0.0])
    assert not weights.requires_grad


@pytest.mark.parametrize(("how", "old", "weights"), [
    ("decoupled", [-1.0, -1.0, -0.5, -1.0], [1.0, 1.0, 2.0, 0.0]),
    ("coupled", [-1.0, -1.0, -1.5986123, -1.0], [1.0, 1.0, 1.0, 0.0]),
    ("none", [-1.0, -1.0, -0.5, -1.0], None),
])  # fmt: skip
def test_only_tokens_of_another_policy_are_corrected(how, old, weights):
    """The first token has another sampler's logprob as well, but the proximal policy sampled its row."""
    found = off_policy(PROXIMAL, SAMPLER, torch.tensor([False, True, True, True]), how=how, cap=2.0)
    assert found.old.tolist() == pytest.approx(old)
    assert (found.weights if weights is None else found.weights.tolist()) == weights


@pytest.mark.parametrize(("how", "losses", "gradients"), [
    ("decoupled", [-2.4, -0.6, 1.6, -1.65], [0.0, 0.0, 0.0, -1.65]),
    ("coupled", [-1.2, -0.8, 1.4, -1.2], [0.0, -0.8, 1.4, 0.0]),
    ("none", [-1.2, -1.2, 0.8, -1.1], [0.0, 0.0, 0.0, -1.1]),
])  # fmt: skip
def test_decoupled_clipping_of_areal_by_hand(how, losses, gradients):
    """AReaL (arXiv 2505.24298, equation 5) with its weight w truncated at 2, clip .2, four rows of one token:

        L = -w min(u A, clip(u, .8, 1.2) A),  u = π / π_proximal,  w = min(π_proximal / π_sampler, 2)

    u = 1.5, 1.6, .7, 1.1; w = 4 (so 2), .5, 2, 1.5; A = 1, 1, -1, 1. The clip looks at u alone, so it stops the first
    three. PPO's own clip (coupled) looks at π / π_sampler = 6, .8, 1.4, 1.65, and stops the first and the last.
    """
    sampler, proximal = torch.tensor([[0.1, 0.5, 0.25, 0.2], [0.4, 0.25, 0.5, 0.3]], dtype=torch.float64).log()
    logp = torch.tensor([0.6, 0.4, 0.35, 0.33], dtype=torch.float64).log().requires_grad_()
    found = off_policy(proximal, sampler, torch.ones(4, dtype=torch.bool), how=how, cap=2.0)
    loss, _ = token_policy_loss(logp, found.old, torch.arange(4), torch.tensor([1.0, 1.0, -1.0, 1.0]),
                                clip=Clip(0.2, 0.2), mean=Mean("tokens", 4, 4), weights=found.weights)
    loss.backward()
    assert loss.item() == pytest.approx(sum(losses) / 4)
    assert (4 * logp.grad).tolist() == pytest.approx(gradients)


@pytest.mark.parametrize("how", ["decoupled", "coupled"])
def test_on_policy_nothing_is_corrected(how):
    found = off_policy(PROXIMAL, SAMPLER, torch.zeros(4, dtype=torch.bool), how=how, cap=2.0)
    assert found.old is PROXIMAL
    assert found.weights is None


def test_weights_scale_the_loss_and_the_gradient_of_each_token(logp):
    """Row terms -1.657756 and .633386, times mean weights .5 and 1.5, halved. A token's gradient is its own weight
    times that of its row, shared by 3 and 2 tokens."""
    loss, _ = sequence(logp, weights=torch.tensor([0.5, 1.0, 0.0, 2.0, 1.0]))
    assert loss.item() == pytest.approx((-1.657756 * 0.5 + 0.633386 * 1.5) / 2, abs=1e-6)
    loss.backward()
    assert logp.grad.tolist() == pytest.approx(
        [-1.657756 * 0.5 / 6, -1.657756 / 6, 0.0, 0.633386 * 2 / 4, 0.633386 / 4], abs=1e-6)


@pytest.mark.parametrize("loss", [sequence, token])
@pytest.mark.parametrize("clip", [CLIP, Clip(3e-4, 4e-4)])
def test_weights_of_one_change_neither_loss_nor_gradient(logp, loss, clip):
    options = {"clip": clip} if loss is sequence else {}
    plain, weighted = loss(logp, **options)[0], loss(logp, weights=torch.ones(5), **options)[0]
    assert weighted.item() == pytest.approx(plain.item(), abs=1e-14)
    gradients = [torch.autograd.grad(value, logp)[0] for value in (plain, weighted)]
    torch.testing.assert_close(*gradients, atol=1e-14, rtol=0)


def test_a_log_ratio_beyond_the_cap_stays_finite_with_weights():
    logp = torch.tensor([0.0, 0.0], requires_grad=True)
    loss, _ = sequence_policy_loss(logp, torch.tensor([-300.0, -300.0]), torch.tensor([0, 0]), torch.tensor([-1.0]),
                                   clip=CLIP, mean=Mean("actions", 1, 2), weights=torch.ones(2))
    loss.backward()
    assert torch.isfinite(loss)
    assert logp.grad.tolist() == [0.0, 0.0]


def test_value_loss_by_hand():
    """Moved 1 towards its return, .2 away within the clip, onto a smaller error, 1 away: 2.25, 1, .04 and 9."""
    values = torch.tensor([1.0, 3.0, 0.2, -1.0], requires_grad=True)
    before, returns = torch.tensor([0.0, 2.8, 0.0, 0.0]), torch.tensor([2.0, 2.0, 0.0, 2.0])
    loss = value_loss(values, before, returns, clip=0.5, count=4)
    loss.backward()
    assert loss.item() == pytest.approx(12.29 / 8)
    assert values.grad.tolist() == pytest.approx([0.0, 0.25, 0.05, -0.75])


def test_turn_gae_by_hand():
    """γ = λ = 1/2; episodes of 2 and 1 turns. δ_1 = 0 + 2 - 1 = 1, δ_2 = 8 - 4 = 4, A_1 = 1 + 1/4 · 4 = 2; 0 - 3."""
    values, rewards = torch.tensor([1.0, 4.0, 3.0]), torch.tensor([0.0, 8.0, 0.0])
    ends = torch.tensor([False, True, True])
    assert turn_gae(values, rewards, ends, gamma=0.5, lam=0.5).tolist() == [2, 4, -3]
    assert turn_gae(values, rewards, ends, gamma=1, lam=1).tolist() == [7, 4, -3]


def test_token_gae_by_hand():
    """γ = λ = ½: δ 0, 0, 4 and -4, so A .25, 1, 4 and -4. γ = λ = 1: score less value."""
    values, row = torch.tensor([1.0, 2.0, 4.0, 3.0]), torch.tensor([0, 0, 0, 1])
    scores = torch.tensor([8.0, -1.0])
    assert token_gae(values, row, scores, gamma=0.5, lam=0.5).tolist() == [0.25, 1, 4, -4]
    assert token_gae(values, row, scores, gamma=1, lam=1).tolist() == [7, 6, 4, -4]
    assert token_gae(values, row, scores, gamma=1, lam=0).tolist() == [1, 2, 4, -4]


def test_the_power_changes_linearly_from_the_first_step_to_the_last():
    falling = LossSection(power=1.0, power_last=-1.0)
    assert [falling.power_at(step, 5) for step in range(1, 6)] == [1.0, 0.5, 0.0, -0.5, -1.0]
    assert falling.power_at(1, 1) == 1.0
    assert [LossSection(power=0.5).power_at(step, 3) for step in (1, 3)] == [0.5, 0.5]
