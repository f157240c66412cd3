"""Properties of the estimators that hold for every group."""

import numpy as np
import pytest
import random_groups
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from learner.credit.registry import ESTIMATORS, estimator, make_options

some = settings(max_examples=200, deadline=None)


def credit(name, group, scale=1.0, **options):
    """Returns the credit of a batch that holds only this group."""
    section = make_options(estimator=name, **options)
    chosen = estimator(name)
    return chosen.batch([chosen.group(random_groups.credit_steps(group, scale), section)], section)[0]


def flat(rows):
    return np.concatenate(rows)


@some
@given(random_groups.groups, random_groups.unit)
def test_gagpo_lambda_one_is_return_minus_value(group, gamma):
    """Telescoping; and so the credit within each state sums to zero."""
    c = credit("gagpo", group, gamma=gamma, lam=1.0, penalty_mode="none")
    sums = dict.fromkeys(c.values, 0.0)
    for states, returns, raw in zip(c.states, c.returns, c.raw_advantages, strict=True):
        expected = [r - c.values[s][0] for r, s in zip(returns, states, strict=True)]
        np.testing.assert_allclose(raw, expected, atol=1e-9)
        for state, a in zip(states, raw, strict=True):
            sums[state] += a
    assert list(sums.values()) == pytest.approx([0] * len(sums), abs=1e-8)


@some
@given(random_groups.groups, random_groups.unit)
def test_gagpo_lambda_zero_is_delta(group, gamma):
    c = credit("gagpo", group, gamma=gamma, lam=0.0, penalty_mode="none")
    assert c.raw_advantages == c.deltas


@some
@given(random_groups.groups, random_groups.options)
def test_gagpo_lambda_one_without_a_norm_is_the_step_term_of_gigpo(group, options):
    """A_S = A_GiGPO - A_E in mode mean_norm with ω = 1; without penalty, bootstrap and broadcast."""
    options |= {"penalty_mode": "none", "normalize": "none", "lam": 1.0, "bootstrap": False, "broadcast": 0.0,
                "mode": "mean_norm", "omega": 1.0}
    step_term = flat(credit("gigpo", group, **options).advantages) - flat(credit("grpo", group, **options).advantages)
    np.testing.assert_allclose(flat(credit("gagpo", group, **options).advantages), step_term, atol=1e-9)


@some
@given(random_groups.groups, random_groups.unit)
def test_a_bootstrap_adds_the_discounted_value_of_the_state_that_an_episode_was_cut_in(group, gamma):
    """λ = 1: Â_t grows by γ^(T-t) V̄ where the group knows that state; returns and values stay as they are."""
    plain = credit("gagpo", group, gamma=gamma, lam=1.0, penalty_mode="none")
    cut = credit("gagpo", group, gamma=gamma, lam=1.0, penalty_mode="none", bootstrap=True)
    assert (cut.returns, cut.values) == (plain.returns, plain.values)
    for episode, before, after in zip(group, plain.raw_advantages, cut.raw_advantages, strict=True):
        value = plain.values.get(episode["cut_in"], (0.0, 0))[0]
        expected = [a + gamma ** (len(before) - t) * value for t, a in enumerate(before)]
        np.testing.assert_allclose(after, expected, atol=1e-9)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_permuting_episodes_permutes_credit_to_the_bit(name):
    @some
    @given(st.data(), random_groups.groups, random_groups.options)
    def check(data, group, options):
        order = data.draw(st.permutations(range(len(group))))
        whole, moved = credit(name, group, **options), credit(name, [group[i] for i in order], **options)
        for field in ("returns", "raw_advantages", "advantages"):
            assert getattr(moved, field) == [getattr(whole, field)[i] for i in order]
        assert moved.values == whole.values

    check()


@pytest.mark.parametrize("name", ["gagpo", "gigpo", "grpo", "reinforce_pp", "reinforce_pp_baseline"])
def test_scaling_rewards_leaves_normalised_credit(name):
    """By powers of two, which scale exactly: ε is the only thing that A notices. No penalty, since it has a scale."""
    @some
    @given(random_groups.groups, random_groups.options, st.sampled_from([0.5, 4.0, 1024.0]))
    def check(group, options, scale):
        options |= {"penalty_mode": "none", "mode": "mean_std_norm", "spread_floor": 0.0}
        assume(name != "gagpo" or options["normalize"] != "none")
        one, other = credit(name, group, **options), credit(name, group, scale=scale, **options)
        assert other.raw_advantages == [[scale * a for a in row] for row in one.raw_advantages]
        spreads = [np.std(xs) for xs in samples(one)]
        assume(all(s == 0 or s > 1e-2 for s in spreads))
        np.testing.assert_allclose(flat(other.advantages), flat(one.advantages), rtol=1e-3, atol=1e-3)

    check()


def samples(credit):
    """The numbers that may be divided by their spread: of the group, and of each state."""
    by_state = {}
    for numbers in (credit.returns, credit.raw_advantages):
        for state, x in zip(np.concatenate(credit.states), np.concatenate(numbers), strict=True):
            by_state.setdefault((numbers is credit.returns, state), []).append(x)
    return [flat(credit.raw_advantages), *by_state.values()]


@pytest.mark.parametrize("name", ["rloo", "ppo"])
def test_scaling_rewards_scales_credit_without_a_norm(name):
    @some
    @given(random_groups.groups, st.sampled_from(["rows", "trajectories"]))
    def check(group, statistics):
        options = {"penalty_mode": "none", "statistics": statistics}
        one, other = credit(name, group, **options), credit(name, group, scale=4.0, **options)
        assert other.advantages == [[4.0 * a for a in row] for row in one.advantages]

    check()


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name != "rlvmr"])
@some
@given(bodies=random_groups.bodies, options=random_groups.options)
def test_all_fail_without_a_penalty_gives_no_credit(name, bodies, options):
    """RLVMR rewards exploring and reflecting also in lost episodes."""
    group = random_groups.build("fail", bodies)
    c = credit(name, group, **options | {"penalty_mode": "none"})
    assert not flat(c.raw_advantages).any()
    assert not flat(c.advantages).any()


@pytest.mark.parametrize("name", ["gagpo", "gagpo_boot", "gigpo", "grpo", "rloo"])
@some
@given(k=st.integers(2, 16), rewards=st.lists(st.sampled_from([0.0, 0.1, 0.7, 10.0]), min_size=1, max_size=8),
       gamma=random_groups.unit, lam=random_groups.unit)
def test_equal_episodes_get_exactly_no_credit(name, k, rewards, gamma, lam):
    """The mean of equal numbers is that number, not a rounding beside it, which a norm would scale up by 1/ε."""
    steps = [{"state": str(t), "reward": r, "invalid": False, "tokens": 1} for t, r in enumerate(rewards)]
    c = credit(name, [{"steps": steps, "cut_in": None}] * k, gamma=gamma, lam=lam)
    assert not flat(c.advantages).any()
