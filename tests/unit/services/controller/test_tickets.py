"""Tickets are pure functions of seed and index."""

import pytest

from services.config.env import EnvSection
from services.config.tree import Config
from services.controller.task_streams import TaskStream
from services.controller.tickets import Demand, EvalRequest, TrainTickets
from services.records import Version


def config(**learner: object) -> Config:
    sizes = {"groups_per_step": 2, "group_size": 2}
    return Config.model_validate({"name": "t", "steps": 3, "learner": {**sizes, **learner}})


def test_each_pass_of_the_stream_is_a_permutation_and_differs() -> None:
    stream = TaskStream(["a", "b", "c", "d", "e"], seed=1)
    first, second = [stream[i] for i in range(5)], [stream[i] for i in range(5, 10)]
    assert sorted(first) == sorted(second) == ["a", "b", "c", "d", "e"]
    assert first != second


def test_the_stream_is_random_access() -> None:
    """A controller that restarts at index 7 sees what the first one would have."""
    tasks = ["a", "b", "c", "d", "e"]
    entire = [TaskStream(tasks, seed=3)[i] for i in range(12)]
    fresh = TaskStream(tasks, seed=3)
    assert [fresh[i] for i in (7, 2, 11)] == [entire[7], entire[2], entire[11]]


def test_an_empty_panel_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        TaskStream([], seed=0)


@pytest.mark.parametrize(("staleness", "dropped", "expected"), [(0, 0, [0, 0, 1, 1, 2, 2]), (1, 0, [0, 0, 0, 0, 1, 1]),
                                                               (0, 2, [0, 0, 0, 0, 1, 1])])
def test_min_step_is_the_consuming_step_less_staleness(staleness: int, dropped: int, expected: list[int]) -> None:
    """Two groups a step: groups 0, 1 feed step 1 (weights of step 0), groups 2, 3 step 2, and so on; a drop shifts."""
    settings = config(staleness=staleness)
    tickets, demand = TrainTickets(config=settings, tasks=TaskStream(["a"], seed=0)), Demand(config=settings, trained=0)
    steps = [tickets.group(i, consumed_at=demand.consumed_at(i - min(i, dropped)))[0].min_step for i in range(6)]
    assert steps == expected


@pytest.mark.parametrize(("trained", "replaced", "limit", "consumed_at"), [
    (8, 0, 18, [4, 4, 4, 4, 4, 5, 5, 5, 5, 5]), (8, 1, 17, [4, 4, 4, 4, 5, 5, 5, 5, 5, 6]),
    (8, 9, 15, [4, 4, 5, 5, 5, 5, 5, 6, 6, 6]), (16, 0, 21, [8, 8, 8, 8, 8, 9, 9, 9, 9, 9]),
    (18, 0, 18, [9, 9, 9, 9, 9, 10, 10, 10, 10, 10])])
def test_each_step_gets_as_many_groups_more_as_it_is_expected_to_replace(
        trained: int, replaced: int, limit: int, consumed_at: list[int]) -> None:
    """Two groups a step, nine steps, three replaced in each. Those that the next step has replaced are played already;
    one step is left after 16 groups, and none after 18."""
    settings = config(staleness=1).model_copy(update={"steps": 9})
    demand = Demand(config=settings, trained=trained, spare=3, replaced=replaced)
    assert demand.limit == limit
    assert [demand.consumed_at(trained + place) for place in range(10)] == consumed_at


def test_members_of_a_group_share_the_task_and_differ_in_seed() -> None:
    group = TrainTickets(config=config(), tasks=TaskStream(["a", "b"], seed=0)).group(5, consumed_at=0)
    assert len({t.task for t in group}) == 1
    assert len({t.seed for t in group}) == 2
    assert [t.id for t in group] == ["train/00000005#0", "train/00000005#1"]


def test_a_quarantined_task_is_passed_over() -> None:
    tickets = TrainTickets(config=config(), tasks=TaskStream(["a", "b"], seed=0))
    assert {tickets.group(i, consumed_at=0, avoid=frozenset({"a"}))[0].task for i in range(6)} == {"b"}


def test_tasks_are_played_again_if_all_of_them_are_quarantined() -> None:
    """A long run on few tasks would end otherwise, although each of them failed seldom."""
    tickets = TrainTickets(config=config(), tasks=TaskStream(["a", "b"], seed=0))
    assert {tickets.group(i, consumed_at=0, avoid=frozenset({"a", "b"}))[0].task for i in range(6)} == {"a", "b"}


def request(label: str, step: int) -> EvalRequest:
    return EvalRequest(label=label, version=Version(incarnation=1, step=step), split="valid", tasks=("x", "y"),
                       temperature=0.4, samples=2, seed=9, env=EnvSection(max_steps=30))


def test_two_versions_meet_the_same_draws() -> None:
    """Paired comparison: the seeds depend on task, temperature and sample alone."""
    before, after = request("a", 0).tickets(), request("b", 5).tickets()
    assert [[t.seed for t in g] for g in before] == [[t.seed for t in g] for g in after]
    assert {t.group for g in before for t in g}.isdisjoint({t.group for g in after for t in g})
