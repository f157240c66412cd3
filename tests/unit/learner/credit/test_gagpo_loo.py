"""Leave-one-out GAGPO: numbers by hand, and what the estimator is for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.credit.gagpo_loo import GagpoLeaveOneOut
from learner.credit.registry import make_options
from learner.credit.types import CreditStep


def episode(states, reward=0.0, invalid=(), cut_in=None):
    last = len(states) - 1
    return [CreditStep(state=s, reward=reward if t == last else 0.0, invalid=t in invalid,
                       cut_in=cut_in if t == last else None) for t, s in enumerate(states)]


def credit(group, **options):
    return GagpoLeaveOneOut().group(group, make_options(estimator="gagpo_loo", **options))


def test_the_singleton_example_by_hand():
    """S U M won, S W M E lost: U, one step before a shared state, shares in the win instead of being blamed for it."""
    c = credit([episode("SUM", 10.0), episode("SWME")])
    assert c.baselines == [[0.0, 0.0, 0.0], pytest.approx([9.025, 9.025, 9.35, 9.35])]
    assert c.deltas == [[0.0, 0.0, 10.0], pytest.approx([-0.45125, -0.1425, -0.4675, -9.35])]
    assert c.raw_advantages[0] == pytest.approx([7.22, 7.6, 10.0])  # γ 7.6 at S: U was met by nobody else
    assert c.raw_advantages[1] == pytest.approx([-7.337325, -7.2485, -9.35, -9.35])
    assert all(a > 0 for a in c.advantages[0])
    assert all(a < 0 for a in c.advantages[1])


def test_leave_one_out_credit_of_a_fork_by_hand():
    """γ = λ = ½, reward 8, prior 1; the returns at S are 2 0 2 4, at X 4 0 8, at Y 8 8, at Z 0 4."""
    group = [episode("SXY", 8.0), episode("SXZ"), episode("SZX", 8.0), episode("SY", 8.0)]
    c = credit(group, gamma=0.5, lam=0.5, prior=1.0, normalize="none")
    first_s = (0 + 2 + 4 + 2) / 4  # the others' mean is also what stands before the first step
    first_x = (0 + 8 + first_s) / 3
    first_y = (8 + first_x) / 2
    assert c.baselines[0] == pytest.approx([first_s, first_x, first_y])
    deltas = [0.5 * first_x - first_s, 0.5 * first_y - first_x, 8 - first_y]
    assert c.deltas[0] == pytest.approx(deltas)
    assert c.advantages[0] == pytest.approx([deltas[0] + deltas[1] / 4 + deltas[2] / 16, deltas[1] + deltas[2] / 4,
                                             deltas[2]])


@pytest.mark.parametrize("length", [1, 5, 40])
def test_the_step_that_leads_into_a_long_stretch_that_nobody_else_went_gets_its_whole_outcome(length):
    """Whatever λ is: to rest on a carried value would leave the outcome at the far end of the stretch."""
    alone = [f"u{i}" for i in range(length)]
    group = [episode(["S", *alone], 10.0), episode(["S", *(f"w{i}" for i in range(length))])]
    for lam in (0.0, 0.8):
        c = credit(group, lam=lam, normalize="none")
        assert c.advantages[0] == pytest.approx(c.returns[0])  # less the other's returns, which are 0
        assert c.advantages[1] == pytest.approx([-c.returns[0][0]] * (length + 1))


def test_an_episode_term_is_added_last_also_where_no_step_can_be_compared():
    """Won and lost in one step each: A is ± 1 / √2 before it. GRPO's deviations are ± 5, and σ is 5 √2."""
    group = [episode("S", 10.0), episode("S")]
    root = pytest.approx(2**-0.5, abs=1e-6)
    assert credit(group).advantages[0] == [root]
    assert credit(group, broadcast=0.5, mode="mean_norm").advantages[0] == [pytest.approx(2**-0.5 + 2.5, abs=1e-6)]
    assert credit(group, broadcast=2.0).advantages[0] == [pytest.approx(3 * 2**-0.5, abs=1e-6)]
    even = [episode("S", 10.0), episode("S", 10.0, invalid=(0,))]  # nothing to compare but the penalty in GRPO's term
    assert credit(even, broadcast=1.0, mode="mean_norm", statistics="trajectories").advantages == [
        [0.0], [pytest.approx(-0.2)]]


@pytest.mark.parametrize("normalize", ["group", "none"])
def test_where_all_fail_only_the_invalid_step_is_touched_and_by_the_penalty_alone(normalize):
    """Normalising cannot blow a penalty up that comes after it (in plain GAGPO this step would get -2.04)."""
    c = credit([episode("SS"), episode("SX", invalid=(0,)), episode("SX")], penalty=1.0, normalize=normalize)
    assert c.advantages == [[0.0, 0.0], [-1.0, 0.0], [0.0, 0.0]]


def test_a_cut_episode_ends_in_the_value_of_the_state_it_was_cut_in():
    group = [episode("SM", cut_in="S"), episode("SM", 8.0)]
    plain, booted = (credit(group, gamma=0.5, lam=0.0, prior=0.0, bootstrap=flag) for flag in (False, True))
    assert plain.deltas[0] == pytest.approx([0.0, -8.0])
    assert booted.deltas[0] == pytest.approx([0.0, 0.5 * 4.0 - 8.0])  # S is worth 4 to the other episode


states = st.sampled_from("ABCDEF")
steps = st.builds(CreditStep, state=states, reward=st.sampled_from([0.0, 0.0, 1.0, -2.0, 10.0]), invalid=st.booleans())
groups = st.lists(st.lists(steps, min_size=1, max_size=8), min_size=2, max_size=8)


@given(st.data(), groups)
def test_the_return_of_an_episode_never_changes_its_own_baselines(data, group):
    """This property corrects the sign error: in plain GAGPO, singleton states are their own baseline."""
    i = data.draw(st.integers(0, len(group) - 1))
    changed = [*group]
    changed[i] = [CreditStep(state=s.state, reward=s.reward + 7.0, invalid=s.invalid) for s in group[i]]
    assert credit(changed).baselines[i] == pytest.approx(credit(group).baselines[i], abs=1e-9)
