"""What holds for every group, against a slow second implementation that shares no code or method with the first."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.credit.registry import estimator
from learner.credit.types import CreditStep
from services.config import CreditSection

step = st.builds(
    CreditStep,
    state=st.sampled_from("ABCD"),
    reward=st.integers(-8, 8).map(float),
    invalid=st.booleans(),
)
groups = st.lists(st.lists(step, min_size=1, max_size=7), min_size=1, max_size=5)
unit = st.sampled_from([0.0, 0.3, 0.8, 0.95, 1.0])
modes = st.sampled_from(["local", "reward", "none"])


def credit(group, **options):
    return estimator("gagpo").group(group, CreditSection(**options))


def oracle(group, gamma, lam, penalty, mode, ddof):
    """Sums written out as double loops over pairs of steps; no recursion, no backward pass, no dictionary."""
    rows = [(i, t, s) for i, episode in enumerate(group) for t, s in enumerate(episode)]

    def reward(s):
        return s.reward - (penalty if s.invalid and mode == "reward" else 0)

    def ret(i, t):
        return sum(gamma**u * reward(s) for u, s in enumerate(group[i][t:]))

    def value(i, t):
        if t == len(group[i]):
            return 0.0
        same = [ret(j, u) for j, u, s in rows if s.state == group[i][t].state]
        return sum(same) / len(same)

    def delta(i, t):
        return reward(group[i][t]) + gamma * value(i, t + 1) - value(i, t)

    raw = [
        sum((gamma * lam) ** (u - t) * delta(i, u) for u in range(t, len(group[i])))
        - (penalty if s.invalid and mode == "local" else 0)
        for i, t, s in rows
    ]
    mean = sum(raw) / len(raw)
    if len(raw) == 1:
        return raw, raw
    std = (sum((x - mean) ** 2 for x in raw) / (len(raw) - ddof)) ** 0.5
    return raw, [(x - mean) / (std + 1e-6) for x in raw]


@settings(max_examples=80, deadline=None)
@given(groups, unit, unit, modes, st.sampled_from([0, 1]))
def test_equals_the_slow_oracle(group, gamma, lam, mode, ddof):
    c = credit(group, gamma=gamma, lam=lam, penalty_mode=mode, ddof=ddof)
    raw, advantages = oracle(group, gamma, lam, 0.1, mode, ddof)
    np.testing.assert_allclose(np.concatenate(c.raw_advantages), raw, atol=1e-9)
    np.testing.assert_allclose(np.concatenate(c.advantages), advantages, atol=1e-6)


@given(groups, unit)
def test_lambda_one_is_return_minus_value(group, gamma):
    """Telescoping; and so the credit within each state sums to zero."""
    c = credit(group, gamma=gamma, lam=1.0, penalty_mode="none")
    for episode, returns, raw in zip(group, c.returns, c.raw_advantages, strict=True):
        expected = [r - c.values[s.state][0] for r, s in zip(returns, episode, strict=True)]
        np.testing.assert_allclose(raw, expected, atol=1e-9)


@given(groups, unit)
def test_lambda_zero_is_delta(group, gamma):
    c = credit(group, gamma=gamma, lam=0.0, penalty_mode="none")
    assert c.raw_advantages == c.deltas


@given(st.data(), groups, modes)
def test_order_of_episodes_does_not_matter(data, group, mode):
    order = data.draw(st.permutations(range(len(group))))
    whole, moved = credit(group, penalty_mode=mode), credit([group[i] for i in order], penalty_mode=mode)
    assert moved.values == whole.values
    assert moved.raw_advantages == [whole.raw_advantages[i] for i in order]
    for a, i in zip(moved.advantages, order, strict=True):
        assert a == pytest.approx(whole.advantages[i], abs=1e-6)


@given(groups, st.sampled_from([0.5, 4.0, 1024.0]))
def test_scaling_rewards_scales_raw_credit_and_leaves_the_normalised(group, scale):
    """Powers of two scale exactly; ε is the only thing that A notices."""
    scaled = [[CreditStep(state=s.state, reward=s.reward * scale) for s in episode] for episode in group]
    one, other = credit(group, penalty_mode="none"), credit(scaled, penalty_mode="none")
    assert np.concatenate(other.raw_advantages).tolist() == (scale * np.concatenate(one.raw_advantages)).tolist()
    raw = np.concatenate(one.raw_advantages)
    if len(raw) > 1 and raw.std() > 1e-2:
        np.testing.assert_allclose(np.concatenate(other.advantages), np.concatenate(one.advantages), atol=1e-3)
