"""GAGPO on examples worked by hand (float64)."""

import msgspec
import numpy as np
import pytest

from learner.credit.registry import estimator, make_options
from learner.credit.state_keys import key_function
from learner.credit.types import mixed_share, statistics


def credit(group, *, name="gagpo", **options):
    return estimator(name).group(group, make_options(name, **options))


def close(found, expected, atol=1e-12):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=atol, rtol=0)


def test_a_fork_with_exact_binary_fractions_by_hand(group):
    """γ = λ = 1/2, reward 8: every intermediate number is a dyadic fraction, so only A needs a tolerance."""
    c = credit(group("SXY+", "SXZ-", "SZX+", "SY+", reward=8.0), gamma=0.5, lam=0.5)
    assert c.returns == [[2, 4, 8], [0, 0, 0], [2, 4, 8], [4, 8]]
    assert c.values == {"S": (2, 4), "X": (4, 3), "Y": (8, 2), "Z": (2, 2)}
    assert c.deltas == [[0, 0, 0], [0, -3, -2], [-1, 0, 4], [2, 0]]
    assert c.raw_advantages == [[0, 0, 0], [-0.875, -3.5, -2], [-0.75, 1, 4], [2, 0]]
    close(c.advantages, [[0.0058] * 3, [-0.4397, -1.7762, -1.0125], [-0.3761, 0.5149, 2.0423], [1.0241, 0.0058]], 5e-5)


def test_a_state_visited_once_before_a_shared_one_gets_the_opposite_sign(group):
    """A singleton before a shared state gets the opposite sign of the outcome: a property, so it must not change."""
    c = credit(group("SUM+", "SWME-", reward=10.0))
    expected = {"S": (4.5125, 2), "U": (9.5, 1), "M": (5, 2), "W": (0, 1), "E": (0, 1)}
    for state, pair in c.values.items():
        assert pair == pytest.approx(expected[state])
    close(c.raw_advantages, [[3.7905, -0.95, 5], [-3.7905, 0.95, -5, 0]])
    close(c.advantages, [[1.0346, -0.2593, 1.3647], [-1.0346, 0.2593, -1.3647, 0]], 5e-5)


def test_all_fail_group_without_invalid_steps_has_no_signal(group):
    c = credit(group("SXY-", "SX-"))
    assert c.advantages == [[0, 0, 0], [0, 0]]


def test_all_fail_local_penalty_touches_only_the_invalid_row(group):
    """Six rows, one at -0.1: mean -1/60, sample std 0.1/√6, so A is -5/√6 = -2.04 there and 1/√6 elsewhere."""
    c = credit(group("SS-", "SX!-", "SX-"), penalty_mode="local")
    assert c.raw_advantages == [[0, 0], [0, -0.1], [0, 0]]
    up, down = 1 / 6**0.5, -5 / 6**0.5
    close(c.advantages, [[up, up], [up, down], [up, up]], 1e-4)


def test_all_fail_reward_penalty_spreads(group):
    """In the reward it reaches V̄: the valid twin of X goes up by 1.14, the valid step before the bad one down by 1.37.

    R̂ = 0 0 | -.095 -.1 | 0 0, V̄(X) = -.05, V̄(S) = -.095/4 = -.02375, δ_X = ∓.05,
    δ_S = .95 V̄(next) + .02375: .0011875, .02375 | -.02375 | -.02375; Â_S adds .76 x the next.
    """
    c = credit(group("SS-", "SX!-", "SX-"), penalty_mode="reward")
    assert c.values["X"] == pytest.approx((-0.05, 2))
    assert c.values["S"] == pytest.approx((-0.02375, 4))
    close(c.deltas, [[0.0011875, 0.02375], [-0.02375, -0.05], [-0.02375, 0.05]])
    close(c.raw_advantages, [[0.0192375, 0.02375], [-0.06175, -0.05], [0.01425, 0.05]])
    close(c.advantages, [[0.45, 0.55], [-1.37, -1.10], [0.34, 1.14]], 5e-3)


def test_all_fail_no_penalty(group):
    assert credit(group("SX!Y-", "SXY-"), penalty_mode="none").advantages == [[0] * 3, [0] * 3]


def test_same_texts_of_two_tasks_or_groups_are_never_pooled(group):
    """State keys keep them apart even where they meet in one call."""
    texts = [[step.state for step in episode] for episode in group("SX+", "SX-")]
    keys = [[key_function("train/1", task)(text) for text in row] for task, row in zip("ab", texts, strict=True)]
    assert not set(keys[0]) & set(keys[1])
    assert key_function("train/1", "a")("S") != key_function("train/2", "a")("S")
    assert key_function("train/1", "a")("S") == key_function("train/1", "a")("S")
    assert key_function("g", "ab")("c") != key_function("g", "a")("bc")
    two = [[type(step)(state=key, reward=step.reward) for key, step in zip(row, episode, strict=True)]
           for row, episode in zip(keys, group("SX+", "SX-"), strict=True)]
    c = credit(two)
    assert {n for _, n in c.values.values()} == {1}
    assert c.raw_advantages == [[0, 0], [0, 0]]  # each its own value: a lone episode has no one to be compared with


def test_one_step_is_left_as_it_is(group):
    c = credit(group("S!-"))
    assert c.advantages == c.raw_advantages == [[-0.1]]


def test_constant_advantages_normalise_to_zero(group):
    """Ten equal penalties: 0.1 has no exact mean in binary, the result is still exactly 0."""
    assert credit(group(*["S!-"] * 10)).advantages == [[0]] * 10


def test_revisits_within_an_episode_count(group):
    """SXS+ with γ = 1/2, reward 4: R̂ = 1, 2, 4 and V̄(S) = (1 + 4) / 2."""
    c = credit(group("SXS+", reward=4.0), gamma=0.5)
    assert c.values == {"S": (2.5, 2), "X": (2, 1)}


def test_normalize_state_compares_the_steps_of_each_state(group):
    """γ = λ = ½, reward 8. Â is 0 -.875 -.75 2 at S, 0 -3.5 4 at X, 0 0 at Y and -2 1 at Z (docs/algorithms.md).

    At S the mean is 3/32, and the deviations are -3 -31 -27 61 over 32, σ = 1.3283.
    At X: mean 1/6, deviations -1/6 -11/3 23/6, σ = 3.7528. At Z: deviations ∓ 1.5, σ = 2.1213.
    """
    texts = ("SXY+", "SXZ-", "SZX+", "SY+")
    c = credit(group(*texts, reward=8.0), gamma=0.5, lam=0.5, normalize="state")
    assert [x for row in c.advantages for x in row] == pytest.approx(
        [-.0706, -.0444, 0, -.7293, -.9771, -.7071, -.6352, .7071, 1.0215, 1.4351, 0], abs=5e-5)
    floored = credit(group(*texts, reward=8.0), gamma=0.5, lam=0.5, normalize="state", spread_floor=3.0)
    assert floored.advantages[2] == pytest.approx([(-.75 - 3 / 32) / 3, .5, 1.0215], abs=5e-5)


@pytest.mark.parametrize("name", ["gagpo", "gagpo_loo", "gagpo_boot", "gagpo_graph"])
def test_normalize_state_leaves_a_lone_step_its_penalty_alone(name, group):
    """U is alone in its state, and S! the one invalid step of its own."""
    c = credit(group("SU!-", "S!X+", "SX+"), name=name, normalize="state")
    assert c.advantages[0][1] == pytest.approx(-0.1)
    whole = credit(group("SU-", "SX+", "SX+"), name=name, normalize="state")
    assert c.advantages[1][0] == pytest.approx(whole.advantages[1][0] - 0.1)


def test_normalize_none_gives_raw(group):
    c = credit(group("SX+", "SX-"), normalize="none")
    assert c.advantages == c.raw_advantages


def test_statistics_by_hand(group):
    """ex1 unnormalised: Â sorted is -3.5 -2 -.875 -.75 0 0 0 0 1 2 4; S X Y Z occur 4 3 2 2 times.

    Quartiles of eleven numbers lie on the third and ninth halves: (-.875 - .75) / 2 and (0 + 1) / 2.
    Their sum is -.125, the sum of their squares 12.25 + 4 + .765625 + .5625 + 1 + 4 + 16 = 38.578125.
    """
    ex1 = credit(group("SXY+", "SXZ-", "SZX+", "SY+", reward=8.0), gamma=0.5, lam=0.5, normalize="none")
    found = statistics([ex1])
    assert [found.pop(f"advantage_{name}") for name in ("mean", "std", "min", "max")] == pytest.approx(
        [-0.125 / 11, (38.578125 / 11 - (0.125 / 11) ** 2) ** 0.5, -3.5, 4.0])
    assert found == {
        "group_size_mean": 11 / 4, "singleton_share": 0, "share_2_4": 1, "share_5_8": 0, "share_above_8": 0,
        "active_share": 7 / 11, "flat_share": 0, "advantage_iqr": 1.3125, "share_above_one": 4 / 11}
    lone = credit(group("SQ+"), normalize="none")
    assert statistics([ex1, lone])["singleton_share"] == 2 / 13
    assert statistics([ex1, lone])["flat_share"] == 1 / 2
    assert statistics([ex1, lone])["group_size_mean"] == 13 / 6


def test_shares_of_steps_by_the_size_of_their_group(group):
    """Nine at S, eight at X, five at Y, four at Z, two at V, one at W: 29 steps. Groups are not pooled."""
    one = credit(group("SSSSSSSSSXXXXXXXXYYYYYZZZZVVW+"))
    found = statistics([one])
    assert found["group_size_mean"] == 29 / 6
    names = ("singleton_share", "share_2_4", "share_5_8", "share_above_8")
    assert [found[name] for name in names] == [1 / 29, 6 / 29, 13 / 29, 9 / 29]
    assert statistics([one, one])["share_above_8"] == found["share_above_8"]


def test_batch_norm_takes_one_mean_and_spread_over_all_groups(group):
    """Raw 4 -4 and 1 -1: mean 0, variance 34/3. The episode-level term keeps its own scale: here ±.7071 each."""
    groups = group("A+", "A-", reward=8.0), group("A+", "A-", reward=2.0)

    def both(**options):
        section = make_options(normalize="batch", **options)
        return estimator("gagpo").batch([estimator("gagpo").group(each, section) for each in groups], section)

    one, two = both()
    assert (one.raw_advantages, two.raw_advantages) == ([[4], [-4]], [[1], [-1]])
    close([*one.advantages, *two.advantages], [[1.18818], [-1.18818], [0.29704], [-0.29704]], 1e-5)
    one, two = both(broadcast=2.0)
    close([*one.advantages, *two.advantages], [[2.60239], [-2.60239], [1.71126], [-1.71126]], 1e-5)


def test_batch_leaves_groups_that_are_on_one_scale(group):
    section = make_options()
    credits = [estimator("gagpo").group(group("SX+", "SX-"), section)]
    assert estimator("gagpo").batch(credits, section) is credits


def test_broadcast_adds_grpo(group):
    """ex1: Â plus half of GRPO's ±, per trajectory .5 and -1.5."""
    c = credit(group("SXY+", "SXZ-", "SZX+", "SY+", reward=8.0), gamma=0.5, lam=0.5, normalize="none", broadcast=0.5,
               statistics="trajectories")
    close(c.advantages, [[0.25, 0.25, 0.25], [-1.625, -4.25, -2.75], [-0.5, 1.25, 4.25], [2.25, 0.25]], 1e-6)
    assert c.raw_advantages == [[0, 0, 0], [-0.875, -3.5, -2], [-0.75, 1, 4], [2, 0]]


@pytest.mark.parametrize(("cut_in", "at_the_cut", "before"), [("S", 2, -3.5), ("Q", 0, -4), (None, 0, -4)])
def test_bootstrap_ends_a_cut_episode_in_the_value_of_a_known_state(group, cut_in, at_the_cut, before):
    """γ = λ = 1/2. R̂ = 0 0 | 8, V̄(S) = 4, V̄(X) = 0: δ_X = V̄(S)/2 where the episode was cut in S."""
    one, two = group("SX-", "S+", reward=8.0)
    one[1] = msgspec.structs.replace(one[1], cut_in=cut_in)
    c = credit([one, two], gamma=0.5, lam=0.5, bootstrap=True)
    assert c.values == {"S": (4, 2), "X": (0, 1)}
    assert c.raw_advantages == [[before, at_the_cut], [4]]
    assert credit([one, two], gamma=0.5, lam=0.5).raw_advantages == [[-4, 0], [4]]


def test_the_mixed_share_counts_steps_among_others_with_other_lists(group):
    """At S: two of list x, one of y. A step of x has one of two others with another list, which is no majority; that of
    y has two of two. At X: one x and one y, each with all others unlike. Z is alone: nothing is unlike."""
    one = credit(group("SXZ+", "SX-", "S-"))
    assert mixed_share([one], [[["x", "x", "x"], ["x", "y"], ["y"]]]) == 3 / 6
    assert mixed_share([one, one], [[["x"] * 3, ["x"] * 2, ["x"]], [["x", "x", "x"], ["x", "y"], ["y"]]]) == 3 / 12
    assert mixed_share([one], [[["", "", ""], ["", ""], [""]]]) is None
