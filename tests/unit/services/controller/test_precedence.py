"""One member of each role asks for its place before the other members: the learner's ranks need theirs together."""

from __future__ import annotations

import pytest
from scripted_member import Scripted
from supervised_world import World

from services.controller.member import End
from services.errors import Fault

LOST = End("its node is gone", killed=True)
NO_ROOM = "needs 16 bundles of 1 GPU, and 8 of the cluster's is free"


class Placed(World):
    """Three workers and a learner, added as a run adds them. The learner waits for its place if it `waits`.
    The workers are not ready if they load."""

    def __init__(self, *, waits: bool, loads: bool = False) -> None:
        super().__init__()
        self.workers = [self.add(f"worker {index}") for index in range(3)]
        for worker in self.workers:
            worker.answers = not loads
        self.learner = Scripted("learner", self.events, role="learner")
        self.place(waits=waits)
        self.supervisor.add(self.learner)
        self.check()

    def place(self, *, waits: bool) -> None:
        self.learner.needs, self.learner.answers = NO_ROOM if waits else "", not waits

    def after(self, seconds: float = 1.0) -> list[str]:
        """Returns the events of these seconds."""
        before = len(self.events)
        self.check(seconds, step=0.5)
        return self.events[before:]


def test_one_worker_asks_first_then_the_learner_then_the_other_workers():
    """All workers asked first: Ray gave each the emptiest node, and the learner got what was left of every node."""
    world = Placed(waits=True)
    assert world.events == ["start worker 0", "start learner"]
    assert world.after(30) == []
    world.place(waits=False)
    assert world.after() == ["start worker 1", "start worker 2"]
    assert world.supervisor.total_restarts == 0


def test_after_the_loss_of_a_node_the_learner_asks_before_all_workers_but_one():
    """The lost workers took the GPUs that the ranks had just left, so that too few were left for fewer ranks."""
    world = Placed(waits=False)
    world.check(5)
    world.workers[1].end = world.workers[2].end = world.learner.end = LOST
    world.place(waits=True)
    assert world.after(20) == ["stop worker 1", "stop worker 2", "stop learner", "start learner"]
    world.place(waits=False)
    assert world.after() == ["start worker 1", "start worker 2"]
    assert world.supervisor.total_restarts == 3


def test_one_worker_gets_a_place_although_the_learner_waits_for_its_own():
    """Ranks that took all that is left would have nobody who plays for them."""
    world = Placed(waits=False)
    world.check(5)
    for one in (*world.workers, world.learner):
        one.end = LOST
    world.place(waits=True)
    assert [event for event in world.after(20) if event.startswith("start")] == ["start worker 0", "start learner"]
    world.workers[0].end = LOST
    world.check()
    assert [event for event in world.after(0.5) if event.startswith("start")] == ["start worker 1"], "0 has a pause"


def test_workers_that_wait_for_room_do_not_get_that_of_a_learner_that_dies():
    world = Placed(waits=False)
    world.check(5)
    world.workers[2].end, world.workers[2].needs, world.workers[2].answers = LOST, NO_ROOM, False
    assert world.after(30) == ["stop worker 2", "start worker 2"]
    world.learner.end = LOST
    world.place(waits=True)
    assert world.after(30) == ["stop worker 2", "stop learner", "start learner"]
    world.place(waits=False)
    assert world.after() == ["start worker 2"]
    assert world.supervisor.total_restarts == 2


def test_a_learner_that_has_finished_is_waited_for_no_more():
    world = Placed(waits=False)
    world.learner.end = End("")
    world.check(5)
    world.workers[1].end = LOST
    assert world.after() == ["stop worker 1", "start worker 1"]


def test_a_worker_that_has_yet_to_ask_asks_before_one_that_has_failed():
    """While the learner waited for its nodes, the worker of one node with a broken driver was tried twice and ended the
    run."""
    world = Placed(waits=True, loads=True)
    for _ in range(2):
        world.workers[0].end = End("no CUDA device")
        world.check(1)
    assert world.events == ["start worker 0", "start learner", "stop worker 0", "start worker 1"]


def test_workers_that_have_yet_to_ask_are_no_reason_to_try_one_that_cannot_start_again_and_again():
    world = Placed(waits=True, loads=True)

    def fail() -> None:
        for _ in range(20):
            for worker in world.workers:
                worker.end = End("no CUDA device")
            world.check(1)

    with pytest.raises(Fault, match="cannot start, it failed twice in the same way: no CUDA device"):
        fail()
