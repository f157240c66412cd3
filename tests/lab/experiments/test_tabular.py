"""The maze's exact values, and the figures made from them."""

import os
from argparse import Namespace

import numpy as np
import pytest

from lab.experiments.tabular import experiment as tabular
from lab.experiments.tabular.experiment import LAYERS, REWARD, WINS, View, make_maze, score_gradient, softmax
from services.errors import UserError

GAMMA = 0.95


@pytest.fixture
def maze():
    return make_maze(3, GAMMA)


@pytest.fixture
def policy(maze):
    return softmax(np.random.default_rng(0).normal(size=maze.successor.shape))


def test_values_of_the_last_layers_by_hand(maze, policy):
    v, q = maze.values(policy)
    np.testing.assert_allclose(v[-3:], [REWARD * win for win in WINS])
    before = len(v) - 4
    np.testing.assert_allclose(q[before], [GAMMA * v[s] for s in maze.successor[before]])
    assert v[before] == pytest.approx(float(policy[before] @ q[before]))


def test_the_exact_chance_to_win_is_what_playing_gives(maze, policy):
    rewards = maze.play(policy, 40_000, np.random.default_rng(1))[2]
    assert (rewards > 0).mean() == pytest.approx(maze.success(policy), abs=0.01)


def test_every_episode_goes_from_the_start_through_all_layers(maze, policy):
    states, actions, _ = maze.play(policy, 5, np.random.default_rng(2))
    assert states.shape == actions.shape == (5, len(LAYERS))
    assert (states[:, 0] == 0).all()
    np.testing.assert_array_equal(maze.successor[states[:, :-1], actions[:, :-1]], states[:, 1:])


def test_a_group_earns_at_its_last_step_alone(maze, policy):
    states, actions, rewards = maze.play(policy, 4, np.random.default_rng(2))
    for corridor in (0, 3):
        group = View(corridor=corridor).group(states, actions, rewards)
        for episode, reward in zip(group, rewards, strict=True):
            assert [step.reward for step in episode] == [0.0] * (len(LAYERS) * (corridor + 1) - 1) + [reward]


def test_a_view_stretches_the_maze_and_tells_states_apart_by_what_came_before():
    view = View(history=1, corridor=2)
    group = view.group(np.array([[0, 2], [1, 2]]), np.array([[3, 0], [3, 1]]), np.array([0.0, 10.0]))
    assert [step.state for step in group[0]] == ["0", "0/3/0", "0/3/1", "0-2", "0-2/0/0", "0-2/0/1"]
    assert [step.state for step in group[1]] == ["1", "1/3/0", "1/3/1", "1-2", "1-2/1/0", "1-2/1/1"]
    assert view.decided([[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]]).tolist() == [[0.0, 3.0]]


def test_the_score_gradient_is_that_of_the_log_probability(maze):
    """Against a finite difference of Σ A log π."""
    logits = np.random.default_rng(0).normal(size=maze.successor.shape)
    states, actions, _ = maze.play(softmax(logits), 3, np.random.default_rng(1))
    advantages = np.random.default_rng(2).normal(size=states.shape)
    gradient = score_gradient(softmax(logits), states, actions, advantages)

    def objective(x):
        return float((advantages * np.log(softmax(x)[states, actions])).sum())

    state, action = states[1, 4], actions[1, 4]
    moved = logits.copy()
    moved[state, action] += 1e-6
    assert gradient[state, action] == pytest.approx((objective(moved) - objective(logits)) / 1e-6, abs=1e-4)


def test_the_leave_one_out_gradient_points_nearer_to_the_truth_than_plain_gagpo(monkeypatch):
    monkeypatch.setattr(tabular, "GROUPS", 120)
    found = [tabular.credit_figures(("gagpo", "gagpo_loo"), seed) for seed in (0, 1, 2)]
    for figures in found:
        assert figures["gagpo_loo"]["cosine"] > figures["gagpo"]["cosine"]
        assert figures["gagpo_loo"]["sign"] > 0.5 > figures["gagpo"]["sign"] - 0.05


def test_a_policy_learns_and_the_same_seed_gives_the_same_curve():
    curve = tabular.learning_curve("gagpo", View(), 0.3, 0)
    assert len(curve) == tabular.STEPS // tabular.EVERY + 1
    assert curve[-1] > curve[0] + 0.2
    assert curve == tabular.learning_curve("gagpo", View(), 0.3, 0)


def test_the_tables_name_every_estimator(monkeypatch):
    monkeypatch.setattr(tabular, "MAZES", 1)
    monkeypatch.setattr(tabular, "GROUPS", 3)
    monkeypatch.setattr(tabular, "STEPS", 10)
    told = []
    lines = tabular.as_lines(tabular.measure(2, 1, told.append))
    for arm in tabular.ARMS:
        assert sum(line.split()[:1] == [arm] for line in lines) == 1 + len(tabular.LEARNING)
    assert told


def test_intervals_are_students_over_the_mazes():
    """Areas 0.1 and 0.3: 0.2 ± t s / √2, with t = 12.706 at one degree of freedom, s / √2 = 0.1."""
    mean, low, high = tabular._learning(np.array([[0.1], [0.3]]), np.zeros((2, 1)))["area"]
    assert (mean, low, high) == (pytest.approx(0.2), pytest.approx(-1.0706, abs=1e-4), pytest.approx(1.4706, abs=1e-4))


def test_one_maze_is_refused(tmp_path):
    with pytest.raises(UserError, match="one maze says nothing"):
        tabular.run(Namespace(out=tmp_path, report=False, seeds=1, json=True))


def test_a_result_is_whole_while_the_next_one_takes_its_place(monkeypatch, tmp_path):
    for name, small in (("MAZES", 1), ("GROUPS", 3), ("STEPS", 10)):
        monkeypatch.setattr(tabular, name, small)
    file, args = tmp_path / "tabular.json", Namespace(out=tmp_path, report=False, seeds=2, json=True)
    tabular.run(args)
    with file.open() as old:
        tabular.run(args)
        assert old.read() == file.read_text()
        assert os.fstat(old.fileno()).st_nlink == 0
