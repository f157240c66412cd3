"""AdaStep, HGPO, G²PO, GraphGPO and RLVMR on examples worked by hand."""

import random

import numpy as np
import oracle
import pytest
import random_groups

from learner.credit.registry import estimator, make_options
from learner.credit.rlvmr import tag_rewards
from learner.credit.types import CreditStep
from services.errors import UserError


def credit(name, group, **options):
    chosen = make_options(name, penalty=0.0, **options)
    return estimator(name).group(group, chosen)


def close(found, expected):
    np.testing.assert_allclose(np.concatenate(found), expected, atol=1e-6)


def single_steps(*steps):
    """Episodes of one step in the state S: (action, reward) each."""
    return [[CreditStep(state="S", action=action, reward=reward)] for action, reward in steps]


def test_adastep_weighs_the_step_by_what_its_actions_explain():
    """Returns x: 8, 4 and y: 2, 2. Mean 4, variance (16 + 0 + 4 + 4) / 4 = 6, within x 4, within y 0: ŵ = 1 - 2 / 6.

    The episode's term is the same Q - mean here, so A = (1 + 2/3) (Q - mean).
    """
    c = credit("adastep", single_steps(("x", 8.0), ("x", 4.0), ("y", 2.0), ("y", 2.0)), mode="mean_norm")
    close(c.advantages, [20 / 3, 0, -10 / 3, -10 / 3])


def test_ecpo_draws_actions_towards_their_state_and_trusts_states_of_many_steps():
    """x: 8 and 4, y: 2 and 2, mean 4. κ = 2 draws 6 and 2 half way to it, to 5 and 3: ± 1, times ŵ = 2/3.

    The gate is tanh(4 / 4) = .7616. The episode's term is Q - mean.
    """
    group = single_steps(("x", 8.0), ("x", 4.0), ("y", 2.0), ("y", 2.0))
    c = credit("adastep", group, mode="mean_norm", shrinkage=2.0)
    close(c.advantages, [4 + 2 / 3, 2 / 3, -2 - 2 / 3, -2 - 2 / 3])
    term = 2 / 3 * np.tanh(1)
    gated = credit("adastep", group, mode="mean_norm", shrinkage=2.0, gate=4.0)
    close(gated.advantages, [4 + term, term, -2 - term, -2 - term])
    assert gated.values == {"S": (4.0, 4)}


@pytest.mark.parametrize("steps", [
    (("x", 8.0), ("x", 4.0), ("y", 3.0)),
    (("x", 8.0), ("x", 4.0), ("x", 3.0)),
    ((None, 8.0), (None, 4.0), ("x", 3.0), ("x", 1.0)),
    (("x", 1e-170), ("x", 0.0), ("y", 0.0), ("y", 0.0))],
    ids=["one step of an action", "one action", "unknown action", "equal but for less than rounding"])
def test_adastep_is_gigpo_if_the_weight_cannot_be_estimated(steps):
    group = single_steps(*steps)
    close(credit("adastep", group).advantages, np.concatenate(credit("gigpo", group).advantages))


def test_hgpo_weighs_the_state_alone_and_the_longer_history(group):
    """γ = 1/2, reward 8. X has Q 8 (after S) and 0 (after S), 8 (after Z): mean 16/3, so +8/3, -16/3, +8/3.

    After S, X: Q 8 and 0, so +4 and -4. Weights 2 and 3: (2 · 8/3 + 3 · 4) / 5 = 52/15 and -(2 · 16/3 + 3 · 4) / 5.
    X after Z and Z itself are alone. S has Q 4, 0 and 2: mean 2.
    """
    c = credit("hgpo", group("SX+", "SX-", "SZX+", reward=8.0), gamma=0.5, mode="mean_norm", history=1)
    close(c.advantages, [2, 52 / 15, -2, -68 / 15, 0, 0, 8 / 3])
    assert c.values["X"] == (pytest.approx(16 / 3), 3)


def test_hgpo_refuses_weights_beyond_what_a_number_holds():
    """With α = 700 the learner ended at its first step."""
    with pytest.raises(UserError, match=r"alpha cannot be 700\.0; it should be less than or equal to 100"):
        make_options("hgpo", alpha=700.0)


def test_hgpo_gives_histories_whose_returns_differ_by_rounding_no_weight():
    """The same rewards in another order have another sum, by rounding. After X all steps in S have this return, so they
    are compared with the lost one alone, which came after Y, and only by the state: mean 3/4 R, spread √3/4 R."""
    rows = [(0.3, 3.3, 1.7, 0.3, 3.3), (3.3, 0.3, 0.3, 1.7, 3.3), (0.3, 0.3, 3.3, 1.7, 3.3)]
    group = [[CreditStep(state="X", reward=0.0), CreditStep(state="S", reward=row[0]),
              *(CreditStep(state=f"{i}{t}", reward=r) for t, r in enumerate(row[1:]))] for i, row in enumerate(rows)]
    c = credit("hgpo", [*group, [CreditStep(state="Y", reward=0.0), CreditStep(state="S", reward=0.0)]], gamma=1.0)
    assert len({row[1] for row in c.returns[:3]}) == 3
    assert [row[1] for row in c.advantages] == pytest.approx([3**-0.5] * 3 + [-3**0.5], abs=1e-6)


def test_g2po_compares_what_steps_lead_to(group):
    """γ = 1/2, reward 8, mean_norm. V(S) = (1/4 · 8 + 0) / 2 = 1, V(X) = 1/2 · 8 = 4, V(Z) = 0.

    S leads to 4 and 0: A_N ±2, gains 3 and -1; X leads to 8: gain 4; Z to 0: gain 0; mean gain 3/2.
    A_E: S - mean over rows = ±4.
    """
    c = credit("g2po", group("SX+", "SZ-", reward=8.0), gamma=0.5, mode="mean_norm")
    close(c.advantages, [4 + 2 + 1.5, 4 + 0 + 2.5, -4 - 2 - 2.5, -4 + 0 - 1.5])
    close(c.deltas, [3, 4, -1, 0])


def test_hgpo_numbers_histories_anew_that_one_integer_cannot_hold():
    """Eight states to the power of 22 are beyond int64. The episodes differ in their first five states alone, so their
    last steps have the same 30 states, and not the same 36."""
    walk = random.Random(0)
    bodies = [bytes(walk.randrange(8) for _ in range(40)) for _ in range(2)]
    won = bytes([bodies[0][-1] | 0x80])
    episodes = random_groups.build("mixed", [bodies[0], bodies[1][:5] + bodies[0][5:-1] + won])
    given = {"history": 38, "alpha": 1.0, "mode": "mean_norm", "gamma": 0.95, "penalty": 0.1, "penalty_mode": "local"}
    found = estimator("hgpo").group(random_groups.credit_steps(episodes), make_options("hgpo", **given))
    expected = list(oracle.hgpo(episodes, given)["advantages"].values())
    assert [a for row in found.advantages for a in row] == pytest.approx(expected, abs=1e-9)


def test_hgpo_compares_no_histories_that_are_longer_than_every_episode(group):
    """Three states are the longest history here, and a hundred million more passes never ended."""
    episodes = group("SX+", "SX-", "SZX+", reward=8.0)
    longest, beyond = (credit("hgpo", episodes, gamma=0.5, history=history) for history in (2, 10**8))
    assert (longest.advantages, longest.raw_advantages) == (beyond.advantages, beyond.raw_advantages)


def test_graphgpo_gives_a_step_of_a_lost_episode_credit_for_getting_nearer(group):
    """q = 1/2, reward 8: d(X) = 1, d(S) = 2. Episode 1 went S X and lost; episode 2 went S Z, unreachable, d = 3.

    R at S: 4, 4, 1: mean 3, so +1, +1, -2. R at X: 8 and 1 (lost, nothing after it): +7/2 and -7/2. Z is alone.
    raw adds S - mean over rows: 8 - 8/3 and -8/3.
    """
    c = credit("graphgpo", group("SX+", "SX-", "SZ-", reward=8.0), decay=0.5)
    e, lost = 16 / 3, -8 / 3
    close(c.raw_advantages, [e + 1, e + 3.5, lost + 1, lost - 3.5, lost - 2, lost])


def test_graphgpo_takes_a_state_without_text_for_a_state_and_not_for_a_won_end():
    """q = 1/2, reward 8. One goes S, "" and wins: d("") = 1, d(S) = 2. One goes S, X, from where nothing is won: d = 3.

    R at S: 4 and 1, so ±3/2; the states after it are alone. S - mean over rows: ±4.
    """
    step = CreditStep(state="S", reward=0.0)
    won, lost = CreditStep(state="", reward=8.0), CreditStep(state="X", reward=0.0)
    c = credit("graphgpo", [[step, won], [step, lost]], decay=0.5)
    close(c.raw_advantages, [5.5, 4, -5.5, -4])
    undivided = credit("graphgpo", [[step, won], [step, lost]], decay=0.5, mode="mean_norm")
    close(undivided.advantages, [5.5, 4, -5.5, -4])


def test_graphgpo_takes_no_lost_episode_for_won_that_was_cut_in_a_state_without_text():
    """One step each in S, q = 1/2, reward 8: R is 8 for the won one and 8/4 for the lost one, so ±3 beside ±4."""
    won = CreditStep(state="S", reward=8.0)
    lost = CreditStep(state="S", reward=0.0, cut_in="")
    close(credit("graphgpo", [[won], [lost]], decay=0.5).raw_advantages, [7, -7])


def tagged(*steps):
    """One episode of (tag, action, admissible, invalid) steps."""
    return [CreditStep(state=str(t), reward=0.0, tag=tag, action=action, admissible=admissible, invalid=invalid)
            for t, (tag, action, admissible, invalid) in enumerate(steps)]


def test_rlvmr_rewards_each_kind_of_reasoning_by_its_rule():
    lost = tagged(("planning", "a", True, False), ("explore", "a", True, False), ("explore", "b", False, False),
                  ("reflection", "b", True, False), ("reflection", "c", True, False), ("monitor", "d", True, False))
    assert tag_rewards(lost) == [0, 0, 1, 0, 0, 0]
    assert tag_rewards([*lost[:3], lost[4]])[3] == 1, "another action after one that is not admissible"
    won = [*tagged(("reflection", "a", True, False), ("planning", "b", True, False)),
           CreditStep(state="s", reward=10.0, tag="explore", action="a", invalid=True)]
    assert tag_rewards(won) == [1, 1, 0], "an invalid step earns nothing"


def test_rlvmr_adds_the_deviation_among_steps_of_one_tag_to_the_episodes_term():
    """Both lose, so GRPO's term is 0. Explore earns 1, 0 and 1: mean 2/3; the one plan earns 0, alone in its tag."""
    group = [tagged(("planning", "a", True, False), ("explore", "b", True, False), ("explore", "b", True, False)),
             tagged(("explore", "b", True, False))]
    c = credit("rlvmr", group, mode="mean_norm", omega=0.5)
    close(c.advantages, [0, 1 / 6, -1 / 3, 1 / 6])


@pytest.mark.parametrize("name", ["adastep", "hgpo", "g2po", "graphgpo", "rlvmr"])
@pytest.mark.parametrize("texts", [("S-", "S-"), ("SSS-", "SXS-"), ("SX-",)])
def test_a_group_that_only_lost_has_no_credit(group, name, texts):
    assert not np.concatenate(credit(name, group(*texts)).advantages).any()
