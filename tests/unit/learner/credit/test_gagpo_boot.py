"""Bootstrapped GAGPO: numbers by hand, and what becomes of states that one episode alone met."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from learner.credit.gagpo import Gagpo
from learner.credit.gagpo_boot import GagpoBootstrapped, shared_states
from learner.credit.registry import make_options
from learner.credit.types import CreditStep


def episode(states, reward=0.0, invalid=()):
    return [CreditStep(state=s, reward=reward if t == len(states) - 1 else 0.0, invalid=t in invalid)
            for t, s in enumerate(states)]


def credit(group, **options):
    return GagpoBootstrapped().group(group, make_options(estimator="gagpo_boot", **options))


def test_the_singleton_example_by_hand():
    """S 4.5125 and M 5 are shared; U and W take γ·5 from M, and E, after the last shared state, gets nothing."""
    c = credit([episode("SUM", 10.0), episode("SWME")])
    assert c.baselines == [pytest.approx([4.5125, 4.75, 5.0]), pytest.approx([4.5125, 4.75, 5.0, 0.0])]
    assert c.raw_advantages == [pytest.approx([2.888, 3.8, 5.0]), pytest.approx([-2.888, -3.8, -5.0, 0.0])]


def test_a_state_that_one_episode_met_twice_is_still_its_own():
    assert shared_states([episode("SAA"), episode("SB")]) == {"S"}


@pytest.mark.parametrize(("cut_in", "value"), [("M", 10.0), ("S", 2.5), ("U", 0.0), ("X", 0.0), (None, 0.0)])
def test_a_cut_episode_ends_in_the_value_of_a_state_that_another_one_met(cut_in, value):
    """γ = 1/2, λ = 1. The winner went S M: R̂ is 5 and 10. The cut episode went S U and earned 0, so V(S) = 2.5.

    Only the winner was in M, which is enough; only the cut episode itself was in U, and nobody in X. V(U) is γ times
    the value after it, and Â at S is γ V(U) - 2.5.
    """
    cut = episode("SU")
    cut[-1] = structs.replace(cut[-1], cut_in=cut_in)
    c = credit([episode("SM", 10.0), cut], gamma=0.5, lam=1.0, bootstrap=True)
    assert c.baselines[1] == pytest.approx([2.5, value / 2])
    assert c.raw_advantages[1] == pytest.approx([value / 4 - 2.5, 0.0])


def test_where_all_fail_only_the_invalid_step_is_touched_and_by_the_penalty_alone():
    c = credit([episode("SS"), episode("SX", invalid=(0,)), episode("SX")], penalty=1.0)
    assert c.advantages == [[0.0, 0.0], [-1.0, 0.0], [0.0, 0.0]]


steps = st.builds(CreditStep, state=st.sampled_from("ABCDEFGH"), reward=st.sampled_from([0.0, 0.0, 1.0, 10.0]))
groups = st.lists(st.lists(steps, min_size=1, max_size=8), min_size=2, max_size=8)


@given(groups)
def test_an_uncompared_state_hands_its_successors_credit_on(group):
    c, shared = credit(group, penalty_mode="none"), shared_states(group)
    for steps, delta, raw in zip(group, c.deltas, c.raw_advantages, strict=True):
        for t, step in enumerate(steps):
            if step.state not in shared:
                assert delta[t] == 0
                assert raw[t] == pytest.approx(0.76 * raw[t + 1] if t + 1 < len(raw) else 0.0)


@given(groups)
def test_equals_plain_gagpo_where_every_state_is_shared(group):
    doubled = [*group, *group]
    plain = Gagpo().group(doubled, make_options(penalty_mode="none"))
    for row, other in zip(credit(doubled, penalty_mode="none").raw_advantages, plain.raw_advantages, strict=True):
        assert row == pytest.approx(other, abs=1e-9)
