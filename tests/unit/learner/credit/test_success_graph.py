"""GRAFT, CRBC and GraphHCA on graphs worked by hand."""

from math import log, sqrt

import pytest

from learner.credit.registry import estimator, make_options
from learner.credit.types import CreditStep

NAMES = ("graft", "crbc", "graphhca")


def episode(text: str, *, won: bool, invalid: int | None = None) -> list[CreditStep]:
    """Steps as `state-action`; the step of number `invalid` is malformed."""
    pairs = [step.split("-") for step in text.split()]
    return [CreditStep(state=state, action=action, reward=10.0 * (won and t == len(pairs) - 1), invalid=t == invalid)
            for t, (state, action) in enumerate(pairs)]


ROOM = [episode("S-left X-open", won=True), episode("S-left X-wait X-wait", won=False),
        episode("S-right Y-back X-wait", won=False)]
"""X is left four times: to the win, to itself and twice to a loss, so V(X) = γ (1 + V(X)) / 4 = γ / (4 - γ)."""


def credit(name, group, **given):
    options = make_options(name, **given)
    chosen = estimator(name)
    return chosen.batch([chosen.group(group, options)], options)[0]


@pytest.mark.parametrize(("name", "gamma"), [("graft", 0.99), ("crbc", 0.98), ("graphhca", 0.95)])
def test_values_solve_the_graph_with_its_loop(name, gamma):
    """V(Y) = γ V(X) and V(S) = γ (2/3 V(X) + 1/3 V(Y)); the discount is the estimator's own default."""
    x = gamma / (4 - gamma)
    assert credit(name, ROOM).values == {
        "X": (pytest.approx(x), 4), "Y": (pytest.approx(gamma * x), 1),
        "S": (pytest.approx(gamma * (2 * x + gamma * x) / 3), 3)}


@pytest.mark.parametrize(("name", "expected"), [
    ("graft", [[.5770, 1.4165], [.5770, -.0070, -.7047], [-1.1541, 0, -.7047]]),
    ("crbc", [[1.2607, 9.8150], [-.4713, -3.4641, -3.4641], [-.7894, -.5774, -3.4641]]),
    ("graphhca", [[1.7320, 2.2491], [0, .0250, -1.4257], [-1.7320, -.5774, -1.4257]])])
def test_advantages_in_a_room_with_a_loop_and_a_lone_state(name, expected):
    """The first two columns of each estimator by hand, with GRPO's 1.1547 and -0.5774: ROOM's docstring and the next
    tests have the parts."""
    assert credit(name, ROOM).advantages == [pytest.approx(row, abs=6e-5) for row in expected]


def test_crbc_divides_by_its_floor_where_actions_hardly_differ():
    """At S: Q(left) = .98 V(X) and Q(right) = .98 V(Y), with V(X) = .98 / 3.02 and V(Y) = .98 V(X), so they differ by
    .98 · .02 V(X) = .00636, and σ is √2 / 3 of that, .0030. The floor .1 divides instead."""
    x = 0.98 / 3.02
    gap = 0.98 * 0.02 * x
    found = credit("crbc", ROOM, broadcast=0.0, omega=1.0)
    assert [row[0] for row in found.advantages] == pytest.approx([gap / 3 / 0.1] * 2 + [-2 * gap / 3 / 0.1])
    without = credit("crbc", ROOM, broadcast=0.0, omega=1.0, spread_floor=0.0)
    assert [row[0] for row in without.advantages] == pytest.approx([1 / sqrt(2)] * 2 + [-sqrt(2)])


def test_crbc_gives_nothing_where_one_action_was_taken():
    """Both go left at S, one wins at once and one after a step more: outcomes differ, and no action does."""
    group = [episode("S-left", won=True), episode("S-left T-left", won=False)]
    assert credit("crbc", group, broadcast=0.0).advantages == [[0.0], [0.0, 0.0]]


def test_graphhca_takes_the_logarithm_of_no_value_below_a_hundredth():
    """S goes to the win, to a loss and to U, which always loses: ℓ = 0 - Ψ(S), log .01 - Ψ(S) twice. Mean-free it is
    log .01 · (-2/3, 1/3, 1/3), and U is alone."""
    group = [episode("S-a", won=True), episode("S-b", won=False), episode("S-c U-d", won=False)]
    found = credit("graphhca", group, broadcast=0.0, mode="mean_norm")
    third = log(0.01) / 3
    assert [x for row in found.advantages for x in row] == pytest.approx([-2 * third, third, third, 0.0])


def test_graft_scales_over_the_group_if_asked():
    """V(S) = γ / 2, so δ is ± γ / 2: one win, one loss in one step. Both scales give ± 1 / √2 here; a lone state with
    another loss tells them apart: V(U) = 0, so δ = 0 there, and over the group it is at the mean."""
    group = [episode("S-a", won=True), episode("S-b", won=False)]
    root = pytest.approx(1 / sqrt(2), abs=1e-5)
    assert credit("graft", group).advantages == [[root], [pytest.approx(-1 / sqrt(2), abs=1e-5)]]
    wider = [*group, episode("U-a", won=False)]
    assert credit("graft", wider).advantages[0] == [root]
    assert credit("graft", wider, normalize="group").advantages == [
        [pytest.approx(1.0, abs=1e-5)], [pytest.approx(-1.0, abs=1e-5)], [0.0]]


def test_a_penalty_lowers_its_own_step_alone():
    """GRAFT: off A. CRBC and GraphHCA: off the row's score in GRPO's term, (0 - .1) / σ of the rewards 10, 0 and 0."""
    lost = episode("S-right Y-back X-wait", won=False, invalid=1)
    group = [*ROOM[:2], lost]
    for name, off in (("graft", 0.1), ("crbc", 0.1 / (10 / sqrt(3))), ("graphhca", 0.1 / (10 / sqrt(3)))):
        before, after = credit(name, ROOM).advantages, credit(name, group).advantages
        assert after[:2] == before[:2]
        assert after[2] == pytest.approx([before[2][0], before[2][1] - off, before[2][2]], abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_a_penalty_in_the_reward_changes_no_value(name):
    lost = [*ROOM[:2], episode("S-right Y-back X-wait", won=False, invalid=1)]
    assert credit(name, lost, penalty_mode="reward", penalty=50.0).values == credit(name, ROOM).values


@pytest.mark.parametrize("name", NAMES)
def test_if_all_won_the_short_way_is_preferred(name):
    """γ = ½. V(T) = ½ and V(S) = ½ (1 + ½) / 2 = 3/8: going straight on is better than by T."""
    group = [episode("S-on", won=True), episode("S-by T-on", won=True)]
    found = credit(name, group, gamma=0.5)
    assert found.values == {"S": (pytest.approx(3 / 8), 2), "T": (pytest.approx(1 / 2), 1)}
    assert found.advantages[0][0] > 0 > found.advantages[1][0]
    assert found.advantages[1][1] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_if_all_lost_only_the_penalty_is_left(name):
    group = [episode("S-a X-b", won=False), episode("S-b X-a", won=False, invalid=0)]
    assert credit(name, group).advantages == [[0.0, 0.0], [pytest.approx(-0.1), 0.0]]


def test_without_discounting_a_value_is_a_share_of_wins():
    """γ = 1 with a loop: from X the episodes win once and lose twice, whatever the loop."""
    assert credit("graft", ROOM, gamma=1.0).values["X"][0] == pytest.approx(1 / 3)
