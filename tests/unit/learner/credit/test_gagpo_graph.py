"""Graph values by hand, and against a slow iteration of the same equations."""

import random
import tracemalloc

import pytest

from learner.credit.gagpo_graph import GagpoGraph
from learner.credit.group_operations import discounted, rewards
from learner.credit.registry import make_options
from learner.credit.transition_graph import TransitionGraph
from learner.credit.types import CreditStep

PLAIN = make_options("gagpo_graph", gamma=0.5, lam=0.8, prior=1.0, penalty=0.0, normalize="none")


def episode(*states: str, reward: float = 0.0) -> list[CreditStep]:
    return [CreditStep(state=state, reward=reward if t == len(states) - 1 else 0.0) for t, state in enumerate(states)]


def graph_of(group, options=PLAIN):
    return TransitionGraph(group, rewards(group, options), starts=[row[0] for row in discounted(group, options)],
                           gamma=options.gamma, prior=options.prior)


def test_values_solve_the_graph_of_the_other_episodes():
    """Episode 1 won by a, b: V(b) = (1 + m) / 2 and V(a) = (γ V(b) + m) / 2 with m = γ, its start return.

    γ = κ = 0.5 and 1: m = 0.5, V(b) = 0.75, V(a) = (0.375 + 0.5) / 2 = 0.4375.
    """
    group = [episode("a", "c"), episode("a", "b", reward=1.0)]
    credit = GagpoGraph().group(group, PLAIN)
    assert credit.baselines is not None
    assert credit.baselines[0] == pytest.approx([0.4375, 0.4375])  # nobody else was in c: it carries V(a)
    assert credit.deltas is not None
    assert credit.deltas[0] == pytest.approx([0.5 * 0.4375 - 0.4375, -0.4375])


def test_lambda_is_one_where_no_other_episode_has_been():
    """Â_0 = δ_0 + γ · 1 · δ_1 = -0.21875 - 0.5 · 0.4375."""
    group = [episode("a", "c"), episode("a", "b", reward=1.0)]
    assert GagpoGraph().group(group, PLAIN).raw_advantages[0][0] == pytest.approx(-0.4375)


def test_lambda_shrinks_with_visits():
    """One other visit of b and κ = 1: λ_1 = 1 - 0.2 / 2 = 0.9."""
    group = [episode("a", "b"), episode("a", "b", reward=1.0)]
    credit = GagpoGraph().group(group, PLAIN)
    assert credit.deltas is not None
    first, second = credit.deltas[0]
    assert credit.raw_advantages[0][0] == pytest.approx(first + 0.5 * 0.9 * second)


@pytest.mark.parametrize("states", [1, 6, 40], ids=["one state", "shared states", "mostly own states"])
@pytest.mark.parametrize("seed", range(7))
def test_any_graph_solves_its_own_equations(seed: int, states: int):
    """Loops, repeated states and singletons: iterating the equation from 0 reaches the same values."""
    rng = random.Random(seed)
    group = [episode(*(str(rng.randrange(states)) for _ in range(rng.randint(1, 12))), reward=float(rng.random() < 0.5))
             for _ in range(5)]
    options = PLAIN.model_copy(update={"gamma": 0.95, "prior": 2.0})
    graph = graph_of(group, options)
    for without in (None, 0, 3):
        solved = graph.values(without)
        kept = [e for i, e in enumerate(group) if i != without]
        every = {step.state for steps in group for step in steps}
        values = dict.fromkeys(every, 0.0)
        for _ in range(2000):
            total = dict.fromkeys(every, options.prior * solved.mean)
            for steps in kept:
                for t, step in enumerate(steps):
                    after = values[steps[t + 1].state] if t + 1 < len(steps) else 0.0
                    total[step.state] += step.reward + options.gamma * after
            values = {state: total[state] / (graph.value(state, solved)[1] + options.prior) for state in every}
        assert {state: graph.value(state, solved)[0] for state in every} == pytest.approx(values, abs=1e-9)


@pytest.mark.parametrize("won", [0.0, 1.0])
def test_a_uniform_group_of_one_step_has_no_credit(won: float):
    credit = GagpoGraph().group([episode("a", reward=won) for _ in range(4)], PLAIN)
    assert credit.advantages == [[pytest.approx(0.0)]] * 4


def test_a_lone_episode_has_nothing_to_compare_with():
    assert GagpoGraph().group([episode("a", "b", reward=1.0)], PLAIN).advantages == [[0.0, 0.0]]


def test_values_of_the_whole_group_are_one_solution_for_all():
    group = [episode("a", "b", reward=1.0), episode("a", "b")]
    credit = GagpoGraph().group(group, PLAIN.model_copy(update={"leave_out": False}))
    assert credit.baselines is not None
    assert credit.baselines[0] == credit.baselines[1]


def test_a_large_group_takes_little_more_memory_than_its_parts(monkeypatch):
    """40 episodes that share 120 states: parts of 120 · 123 numbers. All at once they took five times as much."""
    rng = random.Random(0)
    group = [episode(*(f"s{rng.randrange(120)}" for _ in range(200)), reward=float(k % 2)) for k in range(40)]
    whole = GagpoGraph().group(group, PLAIN).advantages
    monkeypatch.setattr("learner.credit.transition_graph.MOST_ENTRIES", 1 << 15)
    tracemalloc.start()
    found = GagpoGraph().group(group, PLAIN).advantages
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * 40 * 120 * 123 * 8
    assert [row == pytest.approx(other) for row, other in zip(found, whole, strict=True)] == [True] * 40
