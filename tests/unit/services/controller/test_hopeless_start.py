"""A run ends when no start of a role can help, and not before."""

from __future__ import annotations

import pytest
from supervised_world import World

from services.controller.member import End
from services.errors import Fault


@pytest.fixture
def world() -> World:
    return World()


def test_the_same_failure_twice_before_anything_worked_ends_the_run(world: World) -> None:
    """Process ids and times in the words make no difference."""
    member = world.add("worker")
    member.answers = False
    member.end = End("engine 4711: head size 16 is not supported")
    world.check()
    member.end = None
    world.check(1)
    member.end = End("engine 4811: head size 16 is not supported")
    with pytest.raises(Fault, match=r"worker cannot start, it failed twice in the same way: engine 4811: head size 16"):
        world.check()


def test_members_of_one_node_that_fail_alike_do_not_end_a_run_whose_others_still_start(world: World) -> None:
    """One node has a broken driver: its workers end in seconds, where the others load for a minute."""
    loads, first, second = (world.add(name, role="rollout") for name in ("loads", "first", "second"))
    loads.answers = first.answers = second.answers = False
    for _ in range(2):
        first.end = second.end = End("no CUDA device")
        world.check()
        world.check(2)
    assert world.events.count("start first") == world.events.count("start second") == 3
    loads.end = End("no CUDA device")
    world.check()
    first.end = End("no CUDA device")
    with pytest.raises(Fault, match="first cannot start, it failed twice in the same way"):
        world.check(70)


def test_the_same_failure_is_no_reason_to_end_once_the_role_has_worked_or_when_the_process_was_killed(
        world: World) -> None:
    world.add("healthy")
    world.check()
    second = world.add("second")
    killed = world.add("killed", role="learner")
    for _ in range(3):
        second.answers = killed.answers = False
        second.end, killed.end = End("head size 16 is not supported"), End("killed for want of memory", killed=True)
        world.check(70)
    assert sum("head size" in note for note in world.notes) == sum("want of memory" in n for n in world.notes) == 3
