"""The baselines on examples worked by hand (float64), each step of a group in order of episodes."""

import msgspec
import numpy as np
import pytest

from learner.credit.registry import ESTIMATORS, estimator, make_options
from learner.credit.state_keys import key_function
from learner.credit.types import CreditStep
from services.errors import UserError

FORK = ("SXY+", "SXZ-", "SZX+", "SY+")
"""With γ = λ = 1/2 and reward 8."""
BIAS = ("SUM+", "SWME-")
"""With γ = 0.95, λ = 0.8 and reward 10."""
FAIL = ("SS-", "SX!-", "SX-")
"""One invalid step in a group where all fail."""


def credit(name, *groups, **options):
    section = make_options(estimator=name, **options)
    chosen = estimator(name)
    return chosen.batch([chosen.group(group, section) for group in groups], section)


def close(found, expected, atol=5e-5):
    np.testing.assert_allclose(np.concatenate(found), expected, atol=atol, rtol=0)


@pytest.mark.parametrize(("name", "options", "expected"), [
    ("gigpo", {"mode": "mean_norm"},
     [2.1818, 2.1818, 2.1818, -7.8182, -9.8182, -7.8182, 2.1818, 4.1818, 6.1818, 4.1818, 2.1818]),
    ("gigpo", {}, [0.5839, 0.5839, 0.5839, -2.7817, -2.5570, -2.2641, 0.5839, 1.2910, 1.5839, 1.8086, 0.5839]),
    ("gigpo", {"omega": 0.0}, [0.5839] * 3 + [-1.5570] * 3 + [0.5839] * 5),
    ("grpo", {}, [0.5839] * 3 + [-1.5570] * 3 + [0.5839] * 5),
    ("grpo", {"mode": "mean_norm"}, [2.1818] * 3 + [-5.8182] * 3 + [2.1818] * 5),
    ("grpo", {"statistics": "trajectories"}, [0.5] * 3 + [-1.5] * 3 + [0.5] * 5),
    ("grpo", {"statistics": "trajectories", "ddof": 0}, [0.57735] * 3 + [-1.73205] * 3 + [0.57735] * 5),
    ("rloo", {}, [2.4] * 3 + [-6.4] * 3 + [2.4] * 5),
    ("rloo", {"statistics": "trajectories"}, [2.66667] * 3 + [-8] * 3 + [2.66667] * 5),
    ("ppo", {}, [8] * 3 + [0] * 3 + [8] * 5),
])
def test_each_estimator_on_a_fork_with_exact_binary_fractions(group, name, options, expected):
    (c,) = credit(name, group(*FORK, reward=8.0), gamma=0.5, lam=0.5, **options)
    close(c.advantages, expected)
    assert c.returns == [[2, 4, 8], [0, 0, 0], [2, 4, 8], [4, 8]]


@pytest.mark.parametrize(("name", "options", "expected"), [
    ("gigpo", {"mode": "mean_norm"}, [10.2268, 5.7143, 10.7143, -8.7982, -4.2857, -9.2857, -4.2857]),
    ("gigpo", {}, [1.7762, 1.0690, 1.7762, -1.5089, -0.8018, -1.5089, -0.8018]),
    ("grpo", {}, [1.0690] * 3 + [-0.8018] * 4),
    ("grpo", {"statistics": "trajectories"}, [0.7071] * 3 + [-0.7071] * 4),
    ("rloo", {}, [6.6667] * 3 + [-5] * 4),
    ("rloo", {"statistics": "trajectories"}, [10] * 3 + [-10] * 4),
])
def test_singletons_get_the_credit_of_their_episode_alone(group, name, options, expected):
    (c,) = credit(name, group(*BIAS, reward=10.0), **options)
    close(c.advantages, expected)


@pytest.mark.parametrize(("name", "options", "local", "reward"), [
    # rows: S = 0 but for one -.1, deviations 1/60 and -1/12, std .1/√6; in the reward S = 0 0 | -.1 -.1 | 0 0
    ("grpo", {}, [0.40825] * 3 + [-2.04124] + [0.40825] * 2, [0.64550] * 2 + [-1.29099] * 2 + [0.64550] * 2),
    # trajectories: no R_i knows the local penalty, so that there is no spread to divide by
    ("grpo", {"statistics": "trajectories"}, [0, 0, 0, -0.1, 0, 0], [0.57735] * 2 + [-1.15470] * 2 + [0.57735] * 2),
    ("rloo", {}, [0.02, 0.02, 0.02, -0.1, 0.02, 0.02], [0.04] * 2 + [-0.08] * 2 + [0.04] * 2),
    ("rloo", {"statistics": "trajectories"}, [0, 0, 0, -0.15, 0, 0], [0.05] * 2 + [-0.1] * 2 + [0.05] * 2),
    # the step term: Q(X) = -.1 and 0; in the reward R̂ = -.095 -.1, V(S) = -.02375, V(X) = -.05
    ("gigpo", {"mode": "mean_norm"}, [0.016667, 0.016667, 0.016667, -0.133333, 0.016667, 0.066667],
     [0.057083, 0.057083, -0.137917, -0.116667, 0.057083, 0.083333]),
    ("gigpo", {}, [0.40825, 0.40825, 0.40825, -2.74833, 0.40825, 1.11534],
     [1.14550, 1.14550, -2.79099, -1.99810, 1.14550, 1.35260]),
    ("ppo", {}, [0, 0, 0, -0.1, 0, 0], [0, 0, -0.1, -0.1, 0, 0]),
    # whitened over one token a step: as GRPO's rows
    ("reinforce_pp", {}, [0.40825] * 3 + [-2.04124] + [0.40825] * 2, [0.64550] * 2 + [-1.29099] * 2 + [0.64550] * 2),
    ("reinforce_pp_baseline", {}, [0.40825] * 3 + [-2.04124] + [0.40825] * 2,
     [0.64550] * 2 + [-1.29099] * 2 + [0.64550] * 2),
])
def test_all_fail_with_one_invalid_step(group, name, options, local, reward):
    """ε = 1e-6 beside spreads of .04 shows in the fifth figure."""
    for mode, expected in [("local", local), ("reward", reward), ("none", [0] * 6)]:
        (c,) = credit(name, group(*FAIL), penalty_mode=mode, **options)
        close(c.advantages, expected, atol=1e-4)


@pytest.mark.parametrize("name", ["grpo", "graphgpo"])
def test_rewards_that_are_equal_but_for_rounding_have_no_spread(name):
    """Both episodes earn 0.3, one of them as three times 0.1, which sums up to 0.30000000000000004. The penalised step
    had an advantage of -100,000. GraphGPO's own term is 0 in a state of one step."""
    whole = [CreditStep(state="S", reward=0.3)]
    parts = [CreditStep(state=state, reward=0.1, invalid=state == "Y") for state in "XYZ"]
    (c,) = credit(name, [whole, parts], statistics="trajectories", penalty=0.1)
    close(c.advantages, [0, 0, -0.1, 0])


def test_gigpo_values_are_the_means_that_it_compares_with(group):
    """X was left once at -0.1 and once at 0; returns know nothing of the local penalty."""
    (c,) = credit("gigpo", group(*FAIL))
    assert c.values == {"S": (0, 4), "X": (-0.05, 2)}
    assert not np.concatenate(c.returns).any()
    assert c.deltas is None


def test_reinforce_pp_weighs_rows_by_their_tokens(group):
    """The invalid row has 2 of 7 tokens: mean -.2/7, variance (5 (.2/7)² + 2 (.5/7)²) / 6 = .0488²."""
    episodes = group(*FAIL)
    episodes[1][1] = msgspec.structs.replace(episodes[1][1], tokens=2)
    (c,) = credit("reinforce_pp", episodes)
    close(c.advantages, [0.58554, 0.58554, 0.58554, -1.46385, 0.58554, 0.58554], atol=1e-4)


def test_reinforce_pp_whitens_the_batch_and_its_baseline_centres_groups_first(group):
    """Scores 8 0 | 2 2. Without groups: mean 3, variance 36/3. Centred 4 -4 | 0 0: mean 0, variance 32/3."""
    groups = group("A+", "A-", reward=8.0), group("A+", "A+", reward=2.0)
    one, two = credit("reinforce_pp", *groups)
    close(one.advantages, [1.44338, -0.86603])
    close(two.advantages, [-0.28868, -0.28868])
    one, two = credit("reinforce_pp_baseline", *groups)
    assert one.raw_advantages == [[4], [-4]]
    close(one.advantages, [1.22474, -1.22474])
    close(two.advantages, [0, 0])


@pytest.mark.parametrize("name", ["reinforce_pp", "reinforce_pp_baseline"])
def test_unknown_tokens_are_refused(group, name):
    episodes = group("SX+", "SX-")
    episodes[0][1] = msgspec.structs.replace(episodes[0][1], tokens=None)
    with pytest.raises(ValueError, match=f"{name} needs the tokens"):
        credit(name, episodes)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_two_tasks_that_share_texts_are_never_pooled(group, name):
    """Keys of two tasks: each step is alone in its state, so renaming the second task's states changes nothing."""
    def with_keys(tasks):
        return [[msgspec.structs.replace(s, state=key_function("g", task)(s.state)) for s in episode]
                for episode, task in zip(group("SX+", "SX-"), tasks, strict=True)]

    (apart,), (renamed,) = credit(name, with_keys("ab")), credit(name, [
        with_keys("ab")[0], [msgspec.structs.replace(s, state=s.state + "'") for s in with_keys("ab")[1]]])
    assert apart.advantages == renamed.advantages
    if apart.values is not None:
        assert {n for _, n in apart.values.values()} == {1}


@pytest.mark.parametrize("name", ["grpo", "rloo", "gigpo", "ppo"])
def test_a_lone_step_keeps_its_score(group, name):
    (c,) = credit(name, group("S!+", reward=10.0))
    assert c.advantages == [[9.9]]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_one_file_and_one_line_each(name):
    assert estimator(name) is ESTIMATORS[name]
    assert type(estimator(name)).__module__ in (f"learner.credit.{name}", "learner.credit.success_graph")


def test_unknown_estimator_lists_those_that_exist():
    with pytest.raises(UserError) as caught:
        estimator("gagp")
    assert all(name in str(caught.value) for name in ESTIMATORS)
