"""Tasks and evaluations of a run with several environments."""

import numpy as np
import pytest

from services.config.env import EnvSection
from services.config.tree import Config
from services.controller.evaluation import summarise
from services.controller.task_streams import MixedStream, TaskStream
from services.controller.tickets import EvalRequest, TrainTickets
from services.records import Episode, Version

ENV = EnvSection(name="alfworld", max_steps=30, weight=3, more=(EnvSection(name="search", max_steps=4),))
ALFWORLD, SEARCH = [f"alfworld-gen/{n}" for n in range(5)], [f"search-gen/{n}" for n in range(2)]


def stream() -> MixedStream:
    return MixedStream([(3, TaskStream(ALFWORLD, 7)), (1, TaskStream(SEARCH, 7))])


def names(count: int) -> str:
    mixed = stream()
    return "".join(mixed[index][0] for index in range(count))


def test_each_stretch_has_the_shares_of_the_weights():
    """Worked by hand: lacks (3/4, 1/4), (1/2, 1/2), (1/4, 3/4), (1, 0), and so on with period four."""
    assert names(12) == "aasaaasaaasa"


def test_any_index_can_be_read_first_and_each_stream_is_read_in_its_own_order():
    """A controller that starts again reads on at its next group."""
    alfworld, search = TaskStream(ALFWORLD, 7), TaskStream(SEARCH, 7)
    assert [stream()[index] for index in (2, 6, 10)] == [search[0], search[1], search[2]]
    assert [stream()[index] for index in (0, 1, 3, 4, 5, 7)] == [alfworld[i] for i in range(6)]
    forward = stream()
    assert [forward[index] for index in range(40)] == [stream()[index] for index in range(40)]


def test_as_many_indices_as_its_length_hold_every_task_wherever_they_begin():
    mixed = stream()
    for start in range(50):
        assert {mixed[start + i] for i in range(2 * len(mixed))} == {*ALFWORLD, *SEARCH}


def test_a_ticket_has_the_limit_of_its_tasks_environment():
    tickets = TrainTickets(config=Config(name="a", steps=1, env=ENV), tasks=stream())
    limits = {ticket.task.partition("-")[0]: ticket.max_steps
              for index in range(4) for ticket in tickets.group(index, consumed_at=0)}
    assert limits == {"alfworld": 30, "search": 4}
    request = EvalRequest(label="step-1", version=Version(incarnation=1, step=1), split="test", temperature=0.4, seed=0,
                          tasks=("alfworld-gen/0", "search-gen/0"), env=ENV)
    assert [group[0].max_steps for group in request.tickets()] == [30, 4]


@pytest.mark.parametrize("env", [ENV, EnvSection(max_steps=30)])
def test_an_evaluation_tells_the_success_in_each_environment(env: EnvSection):
    tasks = ("alfworld-gen/0", "alfworld-gen/1", "search-gen/0")
    request = EvalRequest(label="step-1", version=Version(incarnation=1, step=1), split="test", temperature=0.4, seed=0,
                          tasks=tasks, env=env)
    won: dict[str, bool] = dict(zip(tasks, (True, False, True), strict=True))
    episodes = [Episode(ticket=ticket, steps=[], won=won[ticket.task], end="won" if won[ticket.task] else "lost",
                        worker="w", attempt=1, seconds=1.0, engine="e") for ticket, in request.tickets()]
    row = summarise(request, episodes, dropped=0, task_type=lambda task: task.partition("/")[0])
    assert row["success_rate"] == pytest.approx(2 / 3)
    if not env.more:
        assert not [key for key in row if key.startswith("success_by_env")], "one environment has no such column"
        return
    assert row["success_by_env"] == {"alfworld-gen": 0.5, "search-gen": 1.0}
    low, high = row["success_by_env_low"], row["success_by_env_high"]
    assert all(0 <= low[name] <= rate <= high[name] <= 1 for name, rate in row["success_by_env"].items())
    assert np.isfinite([*low.values(), *high.values()]).all()
