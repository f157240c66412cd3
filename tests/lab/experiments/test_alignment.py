"""Signal, direction and gain of gradients: hand-worked numbers, and draws whose mean and noise are known."""

import math
from itertools import product

import numpy as np
import pytest

from lab.experiments.gradient.alignment import (
    PolicyGradients,
    adam_steps,
    alignments,
    as_lines,
    measured,
    success_credit,
    tables_of,
)
from services.errors import UserError


def rows(own, true, per_step=8):
    policy = PolicyGradients(policy="p", per_step=per_step, arms={"a": np.array(own, np.float32)},
                             success=np.array(true, np.float32))
    return alignments(policy.arms.items(), policy)


def products(gradients, other=None):
    own = np.array(gradients, np.float32)
    return own @ np.array(gradients if other is None else other, np.float32).T


def test_groups_by_hand():
    """Without the third group g = (1, 0), (1, 2): their product, the mean's square, is 1, and the noise 3 - 1 = 2.

    With two groups a step, the step's square is 1 + 2/2 = 2: half of it is signal. t = (1, 0) twice: the aim is 1.
    """
    own, true = [[1, 0], [1, 2], [1, -2]], [[1, 0]] * 3
    found = measured(products(own), products(own, true), products(true), per_step=2)
    assert found.signal[3] == pytest.approx(1 / 2)
    assert found.direction[3] == pytest.approx(1.0)
    assert found.gain[3] == pytest.approx(1 / math.sqrt(2))


def test_leaving_one_group_out_is_measuring_the_others():
    rng = np.random.default_rng(1)
    own, true = 1 + rng.normal(size=(2, 5, 3))
    found = measured(products(own), products(own, true), products(true), per_step=8)
    for without in range(5):
        mine, its = (np.delete(one, without, axis=0) for one in (own, true))
        again = measured(products(mine), products(mine, its), products(its), per_step=8)
        assert [part[1 + without] for part in found] == pytest.approx([part[0] for part in again], rel=1e-4)


def test_gradients_without_noise_are_all_signal_and_the_gain_is_the_cosine():
    own, true = [[3, 4]] * 5, [[2, 0]] * 5
    (row,) = rows(own, true)
    assert (row.signal.value, row.signal.half) == pytest.approx((1.0, 0.0))
    assert (row.direction.value, row.gain.value) == pytest.approx((0.6, 0.6))
    assert (row.against.value, row.against.half) == pytest.approx((1.0, 0.0))


def test_a_length_that_too_few_groups_cannot_tell_is_not_a_number():
    """The products of opposed gradients are negative, so no length of their mean can be told."""
    own = [[1, 0], [-1, 0], [0, 0]]
    found = measured(products(own), products(own), products(own), per_step=1)
    assert found.signal[3] == pytest.approx(-1.0)
    assert math.isnan(found.direction[3])
    assert math.isnan(found.gain[3])


def test_known_means_are_found_within_the_intervals():
    """g ~ N((3, 0, ...), 1) in 40 dimensions, t ~ N((1, 1, 0, ...), 1): signal 9 / (9 + 40/8), direction 1/√2."""
    rng = np.random.default_rng(0)
    own, true = rng.normal(size=(2, 300, 40)).astype(np.float32)
    own[:, 0] += 3
    true[:, :2] += 1
    (row,) = rows(own, true)
    for found, expected in ((row.signal, 9 / 14), (row.direction, 1 / math.sqrt(2)),
                            (row.gain, math.sqrt(9 / 14) / math.sqrt(2))):
        assert abs(found.value - expected) < 2 * found.half  # 95% intervals of one fixed draw
        assert found.half < 0.2


def test_adam_divides_each_parameter_by_its_root_mean_square():
    """(3, 0), (4, 0): the root of (9 + 16) / 2 is 5/√2. A parameter without a gradient takes no step."""
    np.testing.assert_allclose(adam_steps(np.array([[3, 0], [4, 0]], np.float32)),
                               [[3 * math.sqrt(2) / 5, 0], [4 * math.sqrt(2) / 5, 0]], rtol=1e-6)


def test_two_groups_are_too_few():
    two = np.eye(2, dtype=np.float32)
    with pytest.raises(UserError, match="2 groups are too few for an interval; give at least three"):
        tables_of(PolicyGradients(policy="p", per_step=2, arms={"gagpo": two}, success=two))


def test_the_tables_name_policy_groups_and_arms():
    own = np.array([[1, 0], [1, 2], [1, 1]], np.float32)
    lines = tables_of(PolicyGradients(policy="warm start", per_step=2, arms={"gagpo": own, "gigpo": -own}, success=own))
    assert lines[0] == "warm start, 3 groups, 2 of them a step: plain gradients"
    assert lines[2].startswith("  gagpo")
    assert lines[3].split()[-2:] == ["-1.000", "±0.000"]
    assert [line for line in lines if line.endswith("as Adam scales them")]
    assert as_lines("t", [])[1].split()[:3] == ["arm", "signal", "direction"]


def test_a_figure_that_too_few_groups_cannot_tell_is_a_dash_with_the_reason():
    """It was `nan` or `0.000 ±nan` without a word. Only the signal of the second arm has an interval."""
    own = np.array([[1, 0], [-1, 0], [0, 0.1]], np.float32)
    lines = tables_of(PolicyGradients(policy="p", per_step=2, arms={"gagpo": own, "gigpo": np.abs(own)},
                                      success=np.abs(own)))
    assert [line.split() for line in lines[2:4]] == [["gagpo", *"----"], ["gigpo", "0.664", "±1.307", *"---"]]
    assert lines[4] == "  - these groups are too few to tell this figure from noise: it needs more of them"


def test_without_a_group_that_won_and_lost_nothing_tells_the_gradient_of_success():
    """All its products would be 0, and each figure nan."""
    own = np.array([[1, 0], [1, 2], [1, 1]], np.float32)
    policy = PolicyGradients(policy="first policy of mine, 0% won", per_step=2, arms={"gagpo": own},
                             success=np.zeros_like(own))
    assert tables_of(policy) == [
        "first policy of mine, 0% won, 3 groups, 2 of them a step: no group has both won and lost episodes, so nothing "
        "tells the gradient of success", ""]


def test_each_turn_has_success_minus_that_of_the_others():
    """One of three won: 1 - 0 = 1 for it, 0 - 1/2 for each other, at every turn."""
    assert success_credit([True, False, False], [2, 1, 1]) == [[1.0, 1.0], [-0.5], [-0.5]]
    assert success_credit([True, True], [1, 2]) == [[0.0], [0.0, 0.0]]


def test_the_mean_over_all_groups_is_k_times_the_gradient_of_success():
    """One turn, won with p = σ(θ): d log π / dθ is 1 - p where it won and -p elsewhere, and dp/dθ = p (1 - p)."""
    p, size = 0.3, 3
    mean = 0.0
    for won in product((True, False), repeat=size):
        likelihood = 1.0
        for one in won:
            likelihood *= p if one else 1 - p
        credit = success_credit(won, [1] * size)
        mean += likelihood * sum(row[0] * ((1 - p) if one else -p) for one, row in zip(won, credit, strict=True))
    assert mean == pytest.approx(size * p * (1 - p))
