"""The log-linear experiment: its policy, keys and statistics, and that finished runs are not repeated."""

import argparse
import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from envservice.base import Outcome
from envservice.registry import open_environment
from lab.experiments.loglinear import experiment as loglinear
from lab.experiments.loglinear.experiment import (
    ARMS,
    CONTRASTS,
    RATE,
    Adam,
    LoglinearRun,
    as_lines,
    credit_steps,
    gradient_of,
    minibatch_steps,
    planned,
    read_runs,
    train,
)
from lab.experiments.loglinear.policy import (
    DIMENSIONS,
    HORIZON,
    Decision,
    Memory,
    Play,
    Rules,
    candidates,
    choice,
    features,
    inadmissible_features,
    play,
    probabilities,
    score_entries,
    score_gradient,
)
from services.config.tree import EnvSection
from services.errors import UserError


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch):
    """Provides generated games, also on a machine with official ones."""
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    loglinear._environment.cache_clear()
    loglinear.cloned.cache_clear()
    yield open_environment(EnvSection())
    loglinear._environment.cache_clear()
    loglinear.cloned.cache_clear()


def turn(observation: str, *, changed: bool = True, admissible: tuple[str, ...] = ("look",)) -> Decision:
    return Decision(observation=observation, admissible=admissible, features=np.array([[0, 1], [2, 3]]),
                probabilities=np.array([0.25, 0.75]), chosen=0, changed=changed)


def test_the_gradient_of_a_decision_is_its_features_less_the_expected_ones():
    out = np.zeros(DIMENSIONS)
    score_gradient(turn("o"), 2.0, out)
    assert out[:4].tolist() == pytest.approx([1.5, 1.5, -1.5, -1.5])


def test_probabilities_are_a_softmax():
    theta = np.zeros(DIMENSIONS)
    theta[2] = np.log(3)
    assert probabilities(theta, np.array([[0, 1], [2, 3]])).tolist() == pytest.approx([0.25, 0.75])


def test_adam_takes_a_first_step_of_its_rate():
    adam = Adam(0.08)
    adam.step(np.full(DIMENSIONS, -3.0))
    assert adam.theta[:2].tolist() == pytest.approx([-0.08, -0.08])


def test_an_action_that_changes_nothing_stays_in_its_state_under_that_key_alone():
    one = Play(turns=[turn("a", changed=False), turn("Nothing happens."), turn("b")], won=True)
    keys = ("observation", "admissible", "stay")
    states = {key: [step.state for step in credit_steps([one], key)[0]] for key in keys}
    assert states["observation"] == ["a", "Nothing happens.", "b"]
    assert states["admissible"] == ["a\nlook", "Nothing happens.\nlook", "b\nlook"]
    assert states["stay"] == ["a\nlook", "a\nlook", "b\nlook"]
    assert [step.reward for step in credit_steps([one], "stay")[0]] == [0.0, 0.0, 1.0]


def test_an_episode_is_the_same_for_the_same_numbers_and_ends_at_the_horizon(environment):
    task = environment.tasks("train")[0]
    first, again = (play(environment.open(task), np.zeros(DIMENSIONS), random.Random(3), Rules()) for _ in range(2))
    assert [t.chosen for t in first.turns] == [t.chosen for t in again.turns]
    assert len(first.turns) <= HORIZON


def test_the_entries_of_score_gradients_add_up_to_them(environment):
    theta = np.linspace(-1, 1, DIMENSIONS)
    turns = play(environment.open(environment.tasks("train")[0]), theta, random.Random(3), Rules()).turns
    weights = np.arange(1.0, 1 + len(turns))
    expected = np.zeros(DIMENSIONS)
    for weight, one in zip(weights, turns, strict=True):
        score_gradient(one, weight, expected)
    index, value, of_turn = score_entries(turns)
    np.testing.assert_allclose(np.bincount(index, value * weights[of_turn], DIMENSIONS), expected, atol=1e-9)


def test_the_clumsy_start_prefers_inadmissible_candidates_alone(environment):
    """The agent stands in front of a place, so that both kinds of inadmissible candidate exist."""
    met = set()
    for task in environment.tasks("train")[:6]:
        session = environment.open(task)
        now = session.reset()
        memory = Memory.of(now)
        action = next(one for one in now.admissible_actions if one.startswith("go to"))
        now = session.step(action)
        memory.read(action, now)
        actions = candidates(memory, now)
        found = features(memory, now, actions)
        preferred = np.isin(found[:, 0], inadmissible_features())  # the others could share an index by their hash
        assert preferred.tolist() == [one not in now.admissible_actions for one in actions]
        met |= {one.split()[0] for one in actions if one not in now.admissible_actions}
    assert met == {"go", "take"}


@pytest.mark.parametrize("start", ["warm", *loglinear.ABLATIONS])
def test_a_run_is_a_function_of_its_arm_and_seed(environment, monkeypatch, start):
    for name, value in (("STEPS", 2), ("GROUPS", 1), ("K", 2), ("HELDOUT", 2), ("CLONED_GAMES", 2), ("CLONE_ROWS", 5)):
        monkeypatch.setattr(loglinear, name, value)
    first, again = (train("graph+adm", 5, start, 0.08) for _ in range(2))
    assert (first.success, first.heldout, first.unchanged) == (again.success, again.heldout, again.unchanged)
    assert first.games == "alfworld-gen"


def arrived(environment) -> tuple[Memory, Outcome]:
    """Returns memory and outcome after the first move of an episode."""
    session = environment.open(environment.tasks("train")[0])
    now = session.reset()
    memory = Memory.of(now)
    action = next(one for one in now.admissible_actions if one.startswith("go to"))
    now = session.step(action)
    memory.read(action, now)
    return memory, now


def test_a_slip_has_the_features_of_its_action_and_changes_nothing(environment):
    memory, now = arrived(environment)
    plain, found = choice(memory, now, Rules())
    slipping, doubled = choice(memory, now, Rules(slips=True))
    numbered = [i for i, action in enumerate(plain) if any(letter.isdigit() for letter in action)]
    assert slipping[:len(plain)] == plain
    assert 0 < len(numbered) == len(slipping) - len(plain)
    assert not set(slipping[len(plain):]) & set(now.admissible_actions)
    assert (doubled[:len(plain)] == found).all()
    assert (doubled[len(plain):] == found[numbered]).all()


def test_a_policy_without_memory_does_not_see_what_it_holds_or_where_it_was(environment):
    memory, now = arrived(environment)
    other = replace(memory, holding=True, treated=True, placed=1, visits=Counter({memory.here: 7}))
    (_, blind), (_, blind_too) = (choice(one, now, Rules(memory=False)) for one in (memory, other))
    (_, seeing), (_, seeing_too) = (choice(one, now, Rules()) for one in (memory, other))
    assert (blind == blind_too).all()
    assert (seeing != seeing_too).any()


def test_the_first_minibatch_of_all_turns_is_the_single_update():
    """At ratio 1 nothing is clipped, so both rules take the same step."""
    turns = [(turn("a"), 1.5), (turn("b"), -0.5), (turn("c"), 0.0)]
    once, batch = Adam(0.08), Adam(0.08)
    theta = np.zeros(DIMENSIONS)
    theta[2] = np.log(3)  # gives the probabilities 1/4 and 3/4 of `turn`
    once.theta, batch.theta = theta.copy(), theta.copy()
    once.step(gradient_of(turns))
    minibatch_steps(batch, turns, rows=3, rng=random.Random(0))
    np.testing.assert_allclose(batch.theta, once.theta, atol=1e-12)


@pytest.mark.parametrize(("advantage", "moves"), [(1.0, False), (-1.0, True)])
def test_a_turn_beyond_the_clip_pulls_back_alone(advantage: float, moves: bool):
    """Probability 1/2 where the sampler's was 1/4: ratio 2, beyond 1.2, so only a negative advantage counts."""
    adam = Adam(0.08)
    minibatch_steps(adam, [(turn("a"), advantage)], rows=1, rng=random.Random(0))
    assert bool(adam.theta.any()) == moves


def test_runs_are_planned_seed_by_seed_with_the_primary_rate_first():
    wanted = list(planned(None, 2))
    per_seed, ablated = len(ARMS) * len(loglinear.STARTS), 2 * 4 * len(loglinear.ABLATIONS)
    assert len(wanted) == len(set(wanted)) == per_seed * 2 * 3 + ablated
    assert {rate for *_, rate in wanted[:2 * per_seed]} == {RATE}
    assert {seed for _, seed, *_ in wanted[:per_seed]} == {loglinear.FIRST_SEED}
    assert {start for _, _, start, _ in wanted[2 * per_seed:2 * per_seed + ablated]} == set(loglinear.ABLATIONS)
    with pytest.raises(UserError, match="there is no arm 'gagpoo'"):
        list(planned("gagpoo", 1))
    assert {arm for pair in CONTRASTS for arm in pair} <= set(ARMS)


def test_the_second_plan_has_its_own_arms_and_seeds_and_no_further_runs():
    plan = loglinear.PLANS["graph-credit"]
    wanted = list(planned(None, 2, plan))
    assert len(wanted) == len(set(wanted)) == 2 * len(plan.arms) * len(loglinear.STARTS)
    assert {seed for _, seed, *_ in wanted} == {3000, 3001}
    assert {arm for pair in plan.contrasts for arm in pair} <= set(plan.arms) <= set(loglinear.ALL_ARMS)


def test_its_outcome_is_the_mean_of_the_three_starts():
    """Held-out 50, 60 and 70% at one seed, 52, 62 and 72% at the other: 60 and 62%. A seed that lacks a start waits."""
    runs = [run_of("gagpo", seed, (50 + 10 * i + 2 * seed) / 100, start=start)
            for seed in range(2) for i, start in enumerate(loglinear.STARTS)] + [run_of("gagpo", 2, 0.9)]
    assert [(one.seed, round(one.heldout, 6), one.start) for one in loglinear.averaged(runs)] == [
        (0, 0.6, loglinear.MEAN), (1, 0.62, loglinear.MEAN)]
    assert as_lines(runs, loglinear.PLANS["graph-credit"])[0].startswith("mean of the starts, learning rate 0.08")


def run_of(arm: str, seed: int, heldout: float, games: str = "alfworld", start: str = "warm") -> LoglinearRun:
    return LoglinearRun(arm=arm, seed=seed, start=start, rate=0.08, success=[heldout], heldout=heldout, unchanged=0.0,
                        games=games, seconds=1.0)


def write_runs(file: Path, runs: list[LoglinearRun]) -> None:
    file.write_text("".join(json.dumps(loglinear.asdict(one)) + "\n" for one in runs))


def test_runs_on_other_games_are_never_mixed(environment, tmp_path: Path):
    """Generated games have another name, so a forgotten ALFWORLD_DATA is told before any run is made."""
    write_runs(tmp_path / "runs.jsonl", [run_of("gagpo", 1000, 0.5)])
    args = argparse.Namespace(
        name="loglinear", out=tmp_path, report=False, arms="gagpo", seeds=2, json=False, parallel=1, hours=None)
    with pytest.raises(UserError, match="was made on the games alfworld, and now they are alfworld-gen"):
        loglinear.run(args)


def test_a_run_that_was_made_twice_counts_once(tmp_path: Path):
    write_runs(tmp_path / "runs.jsonl", [run_of("gagpo", 0, 0.5), run_of("gigpo", 0, 0.5), run_of("gagpo", 0, 0.5)])
    assert [one.arm for one in read_runs(tmp_path / "runs.jsonl")] == ["gagpo", "gigpo"]


def test_the_correction_counts_contrasts_that_were_planned_and_have_no_runs_yet():
    """Differences 1, 2 and 3 points: t = 2 sqrt(3), p = 0.0742 by two degrees of freedom, times eight contrasts."""
    runs = [run_of(arm, seed, value) for seed in range(3)
            for arm, value in (("gagpo", 0.51 + seed / 100), ("gigpo", 0.5))]
    (line,) = [line for line in as_lines(runs) if line.strip().startswith("gagpo - gigpo")]
    assert line.count("p=0.59") == 2


def test_equal_differences_are_shown_without_an_interval():
    runs = [run_of(arm, seed, value) for seed in range(3) for arm, value in (("gagpo", 0.75), ("gigpo", 0.5))]
    (line,) = [line for line in as_lines(runs) if line.strip().startswith("gagpo - gigpo")]
    assert line.split() == ["gagpo", "-", "gigpo", "3", "+25.0", "p=1", "+25.0", "p=1"]


def test_one_seed_has_a_mean_and_no_interval():
    (line,) = [line for line in as_lines([run_of("gagpo", 0, 0.5)]) if line.strip().startswith("gagpo ")]
    assert line.split() == ["gagpo", "1", "50.0", "50.0", "0.0%"]


def test_the_table_has_means_and_corrected_differences(tmp_path: Path, capsys):
    runs = [LoglinearRun(arm=arm, seed=seed, start="warm", rate=0.08, success=[value + seed / 1000], heldout=value,
                         unchanged=0.05, games="alfworld", seconds=1.0)
            for seed in range(4) for arm, value in (("gagpo", 0.5 + seed / 100), ("gigpo", 0.6))]
    text = "\n".join(as_lines(runs))
    assert "gagpo - gigpo" in text
    assert "-8.5 ±2.1" in text  # differences -10, -9, -8, -7 of held-out success
    write_runs(tmp_path / "runs.jsonl", runs)
    args = argparse.Namespace(
        name="loglinear", out=tmp_path, report=True, arms=None, seeds=None, json=False, parallel=1, hours=None)
    assert loglinear.run(args) == 0
    assert capsys.readouterr().out.strip() == text.strip()
