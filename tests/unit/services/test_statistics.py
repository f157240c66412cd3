"""Intervals by hand-worked numbers."""

import math

import pytest

from services.statistics import (
    Z95,
    best_of,
    bootstrap_interval,
    detectable,
    holm,
    mean_interval,
    paired_gain,
    paired_test,
    seed_interval,
    student_t,
    success_interval,
)


def test_mean_interval_of_two_values() -> None:
    """Values 0 and 1: mean .5, sample variance .5, standard error .5, so the half-width is 1.96 x .5."""
    mean, low, high = mean_interval([0.0, 1.0])
    assert mean == 0.5
    assert high - mean == pytest.approx(0.979982, abs=1e-6)
    assert mean - low == pytest.approx(0.979982, abs=1e-6)


def test_pairing_removes_the_variance_between_tasks() -> None:
    """Forty tasks of very different difficulty, gaining .1 and .3 in turn: mean .2, sample variance .01 · 40 / 39."""
    before = {str(i): i / 80 for i in range(40)}
    gain, low, high = paired_gain(before, {task: x + 0.2 + 0.1 * (-1) ** int(task) for task, x in before.items()})
    assert gain == pytest.approx(0.2)
    half = 1.959964 * math.sqrt(0.01 / 39)
    assert (low, high) == pytest.approx((0.2 - half, 0.2 + half))


@pytest.mark.parametrize(("gains", "low", "high"), [
    ([1.0], -0.95, 1.0), ([1.0] * 3, -0.415196, 1.0), ([-1.0] * 3, -1.0, 0.415196), ([1.0] * 8, 0.261165, 1.0),
    ([0.0] * 3, -0.707598, 0.707598), ([0.5, 0.5], -0.762829, 0.920943)])
def test_equal_gains_are_not_certain(gains: list[float], low: float, high: float) -> None:
    """At most p = 1 - .025^(1/n) of all tasks gains something else: p is .975 for one, .707598 for three, .369418 for
    eight, .841886 for two. Gains of 1 reach down to 1 - 2p; gains of .5 from .5 - 1.5p to .5 + .5p."""
    found = paired_gain({str(i): 0.5 - gain / 2 for i, gain in enumerate(gains)},
                        {str(i): 0.5 + gain / 2 for i, gain in enumerate(gains)})
    assert found == pytest.approx((gains[0], low, high), abs=1e-5)


def test_few_gains_have_students_interval() -> None:
    """1, 1, 0, 0, 0: mean .4, spread sqrt(.3), so the half-width is 2.7764 x sqrt(.06) = .68008, up to 1."""
    before, after = dict.fromkeys("abcde", 0.0), {"a": 1.0, "b": 1.0, "c": 0.0, "d": 0.0, "e": 0.0}
    assert paired_gain(before, after) == pytest.approx((0.4, -0.280082, 1.0), abs=1e-4)


def test_the_interval_of_a_chosen_gain_covers_all_that_it_was_chosen_from() -> None:
    """Ten comparisons leave .25% at each end: 2.8070 standard errors. Forty gains of .1 and .3 have an error of
    sqrt(.01 / 39). Three equal gains of 1 leave p = 1 - .0025^(1/3) = .864279, so down to 1 - 2p."""
    before = dict.fromkeys(map(str, range(40)), 0.0)
    gain, low, high = paired_gain(before, {task: 0.2 + 0.1 * (-1) ** int(task) for task in before}, comparisons=10)
    assert high - gain == pytest.approx(gain - low) == pytest.approx(2.807034 * math.sqrt(0.01 / 39))
    assert paired_gain(dict.fromkeys("abc", 0.0), dict.fromkeys("abc", 1.0), comparisons=10)[1] == pytest.approx(
        -0.728558, abs=1e-5)


def test_gains_that_differ_by_rounding_are_equal() -> None:
    assert paired_gain({"a": 0.1, "b": 0.8}, {"a": 0.2, "b": 0.9})[1:] == pytest.approx(
        paired_gain({"a": 0.0, "b": 0.0}, {"a": 0.1, "b": 0.1})[1:])


def test_pairing_refuses_different_tasks() -> None:
    with pytest.raises(ValueError, match="same tasks"):
        paired_gain({"a": 1.0}, {"b": 1.0})


@pytest.mark.parametrize(("confidence", "df", "t"), [
    (0.95, 1, 12.7062), (0.95, 2, 4.3027), (0.95, 3, 3.1824), (0.95, 9, 2.2622), (0.95, 30, 2.0423),
    (0.6, 1, 1.3764), (0.6, 4, 0.9410), (0.6, 7, 0.8960)])
def test_students_t_as_it_stands_in_tables(confidence: float, df: int, t: float) -> None:
    assert student_t(confidence, df) == pytest.approx(t, abs=1e-4)


def test_an_interval_over_three_seeds_is_students() -> None:
    """Values .5, .6, .7: spread .1, so the half-width is 4.3027 x .1 / sqrt(3)."""
    mean, low, high = seed_interval([0.5, 0.6, 0.7])
    assert mean == pytest.approx(0.6)
    assert high - mean == pytest.approx(0.248414, abs=1e-5)
    assert mean - low == pytest.approx(0.248414, abs=1e-5)


def test_one_seed_says_nothing_of_the_spread() -> None:
    assert seed_interval([0.5]) == (0.5, -math.inf, math.inf)
    assert detectable([0.5]) == math.inf


def test_the_smallest_difference_that_three_pairs_can_detect() -> None:
    """Differences .1, 0, .2: spread .1, and (4.3027 + 1.0607) x .1 / sqrt(3)."""
    assert detectable([0.1, 0.0, 0.2]) == pytest.approx(0.309652, abs=1e-5)


def test_more_pairs_of_one_spread_show_less() -> None:
    assert detectable([0.0, 1.0] * 10) < detectable([0.0, 1.0] * 5) < detectable([0.0, 1.0])


def test_a_paired_test_is_students_over_seeds():
    """1, 2, 3: mean 2, standard error 1 / sqrt(3), t = 3.4641 at 2 degrees of freedom: p = 0.0742."""
    mean, low, high, p = paired_test([1.0, 2.0, 3.0])
    assert (mean, high - mean, mean - low) == (2.0, pytest.approx(2.48414, abs=1e-4), pytest.approx(2.48414, abs=1e-4))
    assert p == pytest.approx(0.0742, abs=1e-4)
    assert paired_test([0.0, 0.0])[3] == 1.0
    with pytest.raises(ValueError, match="two differences"):
        paired_test([1.0])


@pytest.mark.parametrize("equal", [[0.5, 0.5], [-0.5, -0.5, -0.5], [0.3, 0.1 + 0.2]])
def test_equal_differences_say_nothing_of_their_spread(equal: list[float]):
    """They had p = 0, as if nothing were more certain."""
    mean, low, high, p = paired_test(equal)
    assert (mean, low, high, p) == (pytest.approx(equal[0]), -math.inf, math.inf, 1.0)
    assert detectable(equal) == math.inf


def test_arms_that_never_differ_have_no_difference():
    assert paired_test([0.0, 0.0, 0.0]) == (0.0, 0.0, 0.0, 1.0)
    assert detectable([0.0, 0.0]) == 0.0


def test_holm_steps_down_and_never_orders_p_values_anew():
    """Sorted .01, .02, .04 times 3, 2, 1: .03, .04, .04, each at least the one before."""
    assert holm([0.04, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.6, 0.5]) == [1.0, 1.0]


def test_eight_of_eight_is_not_certain() -> None:
    """Wilson: middle (1 + z²/16) / (1 + z²/8) with z² = 3.8415, so the lower end is 1 / (1 + z²/8) = .67559."""
    mean, low, high = success_interval([1.0] * 8)
    assert (mean, high) == (1.0, 1.0)
    assert low == pytest.approx(0.67559, abs=1e-5)
    mean, low, high = success_interval([0.0] * 8)
    assert (mean, low) == (0.0, 0.0)
    assert high == pytest.approx(0.32441, abs=1e-5)


@pytest.mark.parametrize("success", [0.0, 1.0])
def test_an_interval_holds_its_mean_whatever_is_rounded(success: float):
    """48 lost games had a lower bound of 7e-18, and 128 won ones an upper bound just below 1: no figure shows that."""
    for games in range(1, 400):
        mean, low, high = success_interval([success] * games)
        assert low <= mean <= high


@pytest.mark.parametrize(("share", "tasks", "samples"), [(0.8, 3, 5), (0.7, 3, 10), (0.3, 3, 10)])
def test_games_of_one_success_are_one_trial_each_whatever_is_rounded(share: float, tasks: int, samples: int):
    """The mean of three times .8 is not exactly .8, and by that they counted as 15 trials."""
    _, low, high = success_interval([share] * tasks, samples)
    z2 = Z95**2
    half = Z95 / (1 + z2 / tasks) * math.sqrt(share * (1 - share) / tasks + z2 / (4 * tasks**2))
    middle = (share + z2 / (2 * tasks)) / (1 + z2 / tasks)
    assert (low, high) == pytest.approx((middle - half, middle + half))


@pytest.mark.parametrize(("wins", "tasks", "low", "high"), [
    (1, 1, 0.2065, 1.0), (50, 100, 0.4038, 0.5962), (12, 256, 0.0270, 0.0802)])
def test_wilsons_interval_as_it_stands_in_tables(wins: int, tasks: int, low: float, high: float) -> None:
    found = success_interval([1.0] * wins + [0.0] * (tasks - wins))
    assert found[1:] == pytest.approx((low, high), abs=1e-4)


def test_samples_of_one_task_are_fewer_trials_than_their_number() -> None:
    """Ten tasks with four samples each. If every task is always won or always lost there are ten trials; if all tasks
    are alike, with means that differ as those of four coin tosses do, nearly forty."""
    certain = success_interval([1.0] * 5 + [0.0] * 5, samples=4)
    assert certain == success_interval([1.0] * 5 + [0.0] * 5)
    alike = success_interval([0.25, 0.5, 0.5, 0.75, 0.5, 0.25, 0.75, 0.5, 0.5, 0.5], samples=4)
    assert alike == success_interval([1.0] * 20 + [0.0] * 20)
    between = success_interval([1.0, 1.0, 0.75, 0.75, 0.5, 0.5, 0.25, 0.25, 0.0, 0.0], samples=4)
    assert alike[1] > between[1] > certain[1]
    assert success_interval([0.5] * 10, samples=4) == success_interval([1.0] * 5 + [0.0] * 5)


def test_the_best_of_k_wins_is_pass_at_k() -> None:
    """1 - C(n - c, k) / C(n, k): of 4 episodes one was won, so a pair of them is without it in 3 of 6 draws."""
    assert best_of([0, 0, 1, 0], 2) == 0.5
    assert [best_of([1, 0, 1, 0, 0], k) for k in (1, 2, 3, 4, 5)] == pytest.approx([0.4, 0.7, 0.9, 1.0, 1.0])
    assert [best_of([0, 0], k) for k in (1, 2)] == [0.0, 0.0]


def test_the_best_of_k_values_weighs_each_by_the_draws_that_it_is_the_largest_of() -> None:
    """Among the six pairs of 0, 1, 2, 5 the largest is once 1, twice 2 and thrice 5: (1 + 4 + 15) / 6."""
    assert best_of([5, 1, 0, 2], 2) == pytest.approx(20 / 6)
    assert (best_of([5, 1, 0, 2], 1), best_of([5, 1, 0, 2], 4)) == (2.0, 5.0)
    with pytest.raises(ValueError, match="the best of 5 of 4 values"):
        best_of([5, 1, 0, 2], 5)


def test_the_bootstrap_has_the_spread_of_the_mean_and_repeats_itself() -> None:
    """A hundred values, half of them 1: standard error .05, so 1.96 x .05 on both sides, within a resample's 1/100."""
    values = [0.0, 1.0] * 50
    mean, low, high = bootstrap_interval(values, bounds=(0, 1))
    assert mean == 0.5
    assert (low, high) == (pytest.approx(0.402, abs=0.015), pytest.approx(0.598, abs=0.015))
    assert bootstrap_interval(values, bounds=(0, 1)) == (mean, low, high)


def test_equal_values_of_few_tasks_leave_the_bootstrap_an_interval() -> None:
    """Three tasks: a share of up to 1 - 0.025^(1/3) = 0.7076 of all may have another value, down to 0 or up to 1."""
    assert bootstrap_interval([1.0] * 3, bounds=(0, 1)) == (1.0, pytest.approx(0.2924, abs=1e-4), 1.0)
    assert bootstrap_interval([0.5] * 3, bounds=(0, 1)) == (
        0.5, pytest.approx(0.1462, abs=1e-4), pytest.approx(0.8538, abs=1e-4))
    with pytest.raises(ValueError, match="no values"):
        bootstrap_interval([], bounds=(0, 1))
