"""Tasks are drawn by type, more of those whose groups are both won and lost. Shares worked by hand."""

from collections import Counter
from collections.abc import Mapping

import pytest

from services.config.tree import Config
from services.controller.task_streams import ContrastSampler, TaskStream
from services.controller.tickets import TrainTickets
from services.telemetry.task_types import type_columns

TASKS = [*(f"pick-{n:02d}" for n in range(30)), *(f"cool-{n:02d}" for n in range(10))]
Rows = list[Mapping[str, float]]


def type_of(task: str) -> str:
    return task.partition("-")[0]


def row(step: int, **successes: list[float]) -> dict[str, float]:
    """A row of metrics.jsonl: the share of won episodes of each group, by type."""
    return {"step": step, **type_columns((name, one) for name, groups in successes.items() for one in groups)}


def sampler(rows: Rows, *, staleness: int = 0, seed: int = 0) -> ContrastSampler:
    return ContrastSampler(TASKS, type_of, seed, staleness=staleness, rows=lambda: rows)


def test_a_type_is_drawn_by_its_number_of_tasks_times_its_weight():
    """Contrast 1 and 0 of pick: weight .1 + .9 / 2. None of cool: .1. 30 x .55 = 16.5 and 10 x .1 = 1."""
    shares = sampler([row(1, pick=[0.5, 1.0], cool=[0.0])]).shares(2)
    assert shares == pytest.approx({"cool": 1 / 17.5, "pick": 16.5 / 17.5})


def test_without_results_and_at_equal_contrast_each_task_is_as_likely():
    uniform = {"cool": 0.25, "pick": 0.75}
    assert sampler([]).shares(0) == pytest.approx(uniform)
    assert sampler([row(1, pick=[0.25], cool=[0.75])]).shares(2) == pytest.approx(uniform)


def test_no_type_falls_below_a_tenth_of_its_share():
    """All of cool won, pick won by half: 10 x .1 of 31, and a tenth of 1/4 is less."""
    shares = sampler([row(1, pick=[0.5], cool=[1.0])]).shares(2)
    assert shares["cool"] == pytest.approx(1 / 31)
    assert shares["cool"] > 0.1 / 4


def test_a_type_without_a_recent_group_has_full_weight():
    assert sampler([row(1, pick=[1.0])]).shares(2) == pytest.approx({"cool": 10 / 13, "pick": 3 / 13})


@pytest.mark.parametrize(("staleness", "newest"), [(0, 20), (2, 18)])
def test_the_ten_steps_before_the_consumed_version_count(staleness: int, newest: int):
    """Groups for the step after 21 count the rows of ten steps. Every other row would change the shares."""
    rows: Rows = [row(step, cool=[0.5 if newest - 10 < step <= newest else 0.0], pick=[0.5]) for step in range(1, 30)]
    assert sampler(rows, staleness=staleness).shares(21) == pytest.approx({"cool": 0.25, "pick": 0.75})


def drawn(rows: Rows, count: int = 2000) -> list[str]:
    tickets = TrainTickets(config=Config(name="t", steps=3), tasks=TaskStream(TASKS, seed=0), sampler=sampler(rows))
    return [tickets.group(index, consumed_at=2)[0].task for index in range(count)]


def test_draws_follow_the_shares():
    """16.5 / 17.5 of 2000 is 1886, with a standard deviation of 10."""
    assert Counter(map(type_of, drawn([row(1, pick=[0.5, 1.0], cool=[0.0])])))["pick"] == pytest.approx(1886, abs=30)


def test_no_task_comes_twice_within_a_pass_of_its_type():
    tasks = drawn([])
    for start in range(0, 2000, 30):
        picks = [task for task in tasks[start:start + 30] if type_of(task) == "pick"]
        assert len(picks) == len(set(picks))
    assert set(tasks) == set(TASKS)


def test_a_group_s_task_depends_on_seed_index_and_rows_alone():
    """A controller that restarts at any group draws what the first one would have."""
    rows: Rows = [row(1, pick=[1.0], cool=[0.5])]
    first, fresh = sampler(rows), sampler([*rows, row(2, pick=[0.5], cool=[0.0])])
    whole = [first.stream(index, 2)[index] for index in range(50)]
    assert [fresh.stream(index, 2)[index] for index in (31, 4, 47)] == [whole[31], whole[4], whole[47]]
    other = sampler(rows, seed=1)
    assert [other.stream(index, 2)[index] for index in range(50)] != whole


def test_a_type_that_is_quarantined_as_a_whole_gives_way_to_other_tasks():
    tickets = TrainTickets(config=Config(name="t", steps=3), tasks=TaskStream(TASKS, seed=0),
                           sampler=sampler([row(1, pick=[1.0], cool=[0.5])]))
    cools = frozenset(task for task in TASKS if type_of(task) == "cool")
    assert {type_of(tickets.group(index, consumed_at=2, avoid=cools)[0].task) for index in range(20)} == {"pick"}
    played = {tickets.group(index, consumed_at=2, avoid=frozenset(TASKS))[0].task for index in range(20)}
    assert {type_of(task) for task in played} == {"cool", "pick"}, "all are quarantined, so each group plays its own"


@pytest.mark.parametrize(("steps", "consumed_at", "published", "waits"), [
    ([], 0, -1, False),  # a new run
    ([], 1, 0, False),  # step 1 is trained, and no row counts before that of step 0
    ([1], 2, 1, False),
    ([1, 2], 4, 2, True),  # a restarted learner is about to repeat step 3, whose row it has dropped
    ([1, 2], 4, 4, False),  # it has published step 4, so nobody will write row 3: its line is damaged
])
def test_it_waits_for_a_row_that_the_learner_is_about_to_write(
        steps: list[int], consumed_at: int, published: int, waits: bool):
    assert sampler([row(step, pick=[0.5]) for step in steps]).waits(consumed_at, published) == waits
