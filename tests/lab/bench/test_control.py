"""The benches of the control plane on small sizes, with a real Redis and a real environment server."""

import pytest

from lab.bench import control, load
from lab.bench.simulated import ROOM, SimulatedRun, a_step, an_episode, unaccounted
from services.records import Drop
from services.store.redis_server import private_redis
from services.store.store import Store


def test_every_number_of_workers_and_of_groups_has_its_cost(monkeypatch):
    monkeypatch.setattr(control, "WORKERS", (1, 3))
    monkeypatch.setattr(control, "TICKETS", 100)
    monkeypatch.setattr(control, "MILESTONES", (20, 60))
    for name, value in {"PAIRS": 5, "WARM_STEPS": 2, "BLOCK_STEPS": 4}.items():
        monkeypatch.setattr(control, name, value)
    figures = {figure.name: figure.value for figure in control.run()}
    for name in ("1 worker", "3 workers"):
        assert figures[f"{name}: tickets"] > 8
        assert figures[f"{name}: CPU per group, controller"] > 0
        assert figures[f"{name}: groups or episodes lost or doubled"] == 0
    assert figures["60 groups: CPU per group, Redis"] > 0
    commands = figures["60 groups against a new run: commands of Redis per group, median of 5"]
    assert commands == pytest.approx(1, abs=0.1)
    assert figures["growth: groups or episodes lost or doubled"] == 0


def test_a_load_of_real_games_ends_with_its_books_in_order(monkeypatch):
    small = {"WORKERS": 2, "SLOTS": 8, "SERVERS": 1, "LATENCY_S": 0.05, "GROUPS": 2, "GROUP_SIZE": 4}
    for name, value in small.items():
        monkeypatch.setattr(load, name, value)
    figures = {figure.name: figure.value for figure in load.run(minutes=0.05)}
    assert figures["games at once, most"] > 0
    assert [figures[name] for name in ("groups lost", "groups counted twice", "episodes lost or doubled")] == [0, 0, 0]


@pytest.fixture
def made(tmp_path):
    """A run of two steps of 20 groups of 8, after its first step; the episodes of one more group are in."""
    with private_redis(tmp_path / "redis") as url:
        made = SimulatedRun(url, control._config("books", groups=20, staleness=0), control.TASKS, tmp_path / "a")
        store, controller = Store(url, "books"), made.controller()
        control._step(made, controller, store)
        controller.tick()
        for claim in store.claim("bench", 8):
            store.commit_episode(claim, an_episode(claim.ticket, [a_step(ROOM, "look", made.version)], ROOM))
        yield made, controller


def test_books_that_do_not_add_up_are_told(made):
    """21 groups are in, 20 of them trained: 168 commits. The store itself cannot be made to lose a group, so the counts
    that it is held against are changed instead."""
    made, controller = made
    nothing = {"groups lost": 0, "groups counted twice": 0, "episodes lost or doubled": 0}
    assert unaccounted(made.store, 168, 8) == nothing
    assert unaccounted(made.store, 169, 8) == nothing | {"episodes lost or doubled": 1}
    assert unaccounted(made.store, 160, 8) == nothing | {"episodes lost or doubled": 8}
    controller.store.drop(controller.lease, Drop(group="train/00000020", task="", reason="for the test"))
    assert unaccounted(made.store, 168, 8) == nothing
    made.store.connection.redis.hincrby(made.store.connection.key("counters"), "next_group", 3)
    assert unaccounted(made.store, 168, 8) == nothing | {"groups lost": 3}
