"""A run ends when no start of a role can help, and not before."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripted_member import Scripted
from supervised_world import World

from deploy.members.exit_reasons import describe_actor_exit
from services.controller.member import End
from services.errors import Fault, GagpoError
from services.files import check_seen


class OnNode(Scripted):
    """A worker whose node may lack a folder of the run, as one that joined again before it mounted its storage."""

    lacking: Path | None = None

    def poll(self) -> End | None:
        try:
            check_seen(*[self.lacking] if self.lacking else [])
        except GagpoError as error:
            return describe_actor_exit(error, self.role)
        return self.end


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
    world.check()
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
    world.check(1)
    for _ in range(3):
        second.answers = killed.answers = False
        second.end, killed.end = End("head size 16 is not supported"), End("killed for want of memory", killed=True)
        world.check(70)
    assert sum("head size" in note for note in world.notes) == sum("want of memory" in n for n in world.notes) == 3


def test_a_node_that_does_not_see_the_folders_ends_no_run_whose_others_work(world: World, tmp_path: Path) -> None:
    world.add("healthy")
    returns = OnNode("returns", world.events)
    world.supervisor.add(returns)
    world.check()
    returns.answers, returns.lacking = False, tmp_path / "models"
    world.check(70)
    assert world.events.count("start returns") > 3
    assert f"{tmp_path}/models is not there on" in world.notes[-1]
    returns.answers, returns.lacking = True, None
    world.check(700)
    assert world.supervisor.states()["rollout", "running"] == 2


def test_folders_that_no_node_sees_end_the_run_with_what_to_do(world: World, tmp_path: Path) -> None:
    for name in ("first", "second"):
        worker = OnNode(name, world.events)
        worker.answers, worker.lacking = False, tmp_path / "models"
        world.supervisor.add(worker)
    with pytest.raises(
            Fault, match=f"failed twice in the same way: {tmp_path}/models is not there on .*; set runs_dir"):
        world.check(2)


def test_a_failure_on_two_nodes_in_turn_ends_the_run_although_its_words_name_them(world: World) -> None:
    worker = world.add("worker")
    worker.answers = False
    for node in ("east", "west"):
        worker.end = End(f"/models is not there on {node}")
        world.check(2)
    worker.end = End("/models is not there on east")
    with pytest.raises(Fault, match="failed twice in the same way: /models is not there on east"):
        world.check()


def dies(world: World, member: Scripted, times: int, reason: str = "IndexError: list index 7 out of range") -> None:
    """Lets a member that has worked die so often, five minutes apart."""
    for _ in range(times):
        world.check(300, step=30)
        member.end = End(reason)
        world.check()


def test_a_crash_loop_after_training_ends_the_run_by_its_name(world: World) -> None:
    """It was started again for ever. The role works, so it is no hopeless start. 7 deaths are half an hour apart."""
    learner = world.add("learner", role="learner")
    dies(world, learner, 6)
    with pytest.raises(Fault, match=r"learner has died 7 times in 30 minutes in the same way, and the run has made no "
                                    r"progress meanwhile: IndexError: list index 7 out of range"):
        dies(world, learner, 1)


def test_deaths_between_which_the_run_goes_on_or_that_differ_are_no_loop(world: World) -> None:
    learner = world.add("learner", role="learner")
    for step in range(10):
        world.step = step
        dies(world, learner, 5)
    for reason in ("no memory", "no disk") * 10:
        dies(world, learner, 1, reason)


def test_a_worker_that_dies_again_and_again_ends_no_run_in_which_another_works(world: World) -> None:
    broken = world.add("broken", role="rollout")
    world.add("works", role="rollout")
    dies(world, broken, 20)


def test_kills_loop_only_if_they_follow_one_another(world: World) -> None:
    """Machines are taken away by chance. A process that the kernel kills for its memory at the same place each time is
    killed soon after it is started."""
    learner = world.add("learner", role="learner")

    def is_killed(times: int, apart: int) -> None:
        for _ in range(times):
            world.check(apart, step=50)
            learner.end = End("killed", killed=True)
            world.check()

    is_killed(10, 700)
    with pytest.raises(Fault, match="in the same way, and the run has made no progress meanwhile: killed"):
        is_killed(10, 300)
