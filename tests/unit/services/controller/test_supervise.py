"""A member that dies is restarted after growing pauses. The run ends only if no restart can help."""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import Any

import pytest
from scripted_member import Scripted
from supervised_world import SETTINGS, World

from services.config.tree import SupervisionSection
from services.controller import supervise
from services.controller.member import SICK_AFTER, End
from services.controller.supervise import LOOK_S, STALE_BEATS, Fleet, Supervisor
from services.errors import EngineFault, Fault, UserError


@pytest.fixture
def world() -> World:
    return World()


def test_when_the_ground_is_gone_no_member_is_started_again():
    events: list[str] = []
    gone = [False]

    def ground() -> None:
        if gone[0]:
            raise Fault("the cluster is gone")

    supervisor = Supervisor(events.append, SETTINGS, ground=ground)
    member = Scripted("a", events)
    supervisor.add(member)
    supervisor.check()
    gone[0], member.end = True, End("lost", killed=True)
    with pytest.raises(Fault, match="the cluster is gone"):
        supervisor.check()
    assert events == ["start a"]


def test_a_dead_member_is_stopped_and_started_again(world: World) -> None:
    member = world.add("worker")
    member.end = End("killed", killed=True)
    world.check()
    world.check()
    assert world.events == ["start worker", "stop worker", "start worker"]
    assert world.supervisor.total_restarts == 1
    assert world.notes == ["worker died (killed); starting it again"]


def test_a_member_that_finished_stays_finished(world: World) -> None:
    member = world.add("learner")
    member.end = End("")
    world.check(5)
    assert world.supervisor.finished(member)
    assert world.events == ["start learner"]


def test_a_sick_member_is_tried_again_with_growing_pauses_while_the_others_go_on(world: World) -> None:
    """It is started at 0, 0, 1, 3, 7, ... seconds, and the run never ends because of it."""
    world.add("healthy")
    sick = world.add("sick")
    world.check()
    starts, begun = [], world.now
    for _ in range(4000):
        if world.events[-1] == "start sick":
            starts.append(world.now - begun)
            world.events.append("seen")
            sick.end = End("the GPU fell off the bus")
        world.check()
        world.now += 0.1
    pauses = [round(later - earlier) for earlier, later in pairwise(starts)]
    assert pauses[:8] == [0, 1, 2, 4, 8, 16, 32, 60]
    assert set(pauses[8:]) == {60}, "never longer than the key says"
    assert world.supervisor.states()["rollout", "sick"] == world.supervisor.states()["rollout", "running"] == 1
    (line,) = world.supervisor.sick()
    assert "sick died" in line
    assert "last: the GPU fell off the bus" in line
    assert not world.supervisor.waits, "a healthy worker stands in"


def test_deaths_far_apart_are_forgiven(world: World) -> None:
    member = world.add("worker")
    for _ in range(3 * SICK_AFTER):
        world.check(1000, step=100)
        member.end = End("killed", killed=True)
        world.check()
        world.check()
        assert world.events[-1] == "start worker", "at once"
        assert world.supervisor.sick() == []


def test_a_run_waits_while_a_role_has_nobody(world: World) -> None:
    world.add("worker")
    learner = world.add("learner", role="learner")
    world.check()
    assert not world.supervisor.waits
    learner.answers, learner.end = False, End("its node is gone", killed=True)
    world.check()
    assert world.supervisor.waits
    world.check(10)
    assert world.supervisor.waits, "started, and not ready yet"
    learner.answers = True
    world.check(3)
    assert not world.supervisor.waits


def test_an_exception_at_start_counts_as_a_death(world: World) -> None:
    member = Scripted("learner", world.events)
    member.broken = OSError("no such device")
    world.supervisor.add(member)
    assert "learner died (OSError: no such device (in start, scripted_member.py:" in world.notes[0]
    member.broken = None
    world.check(1)
    assert world.events == ["start learner", "stop learner", "start learner"]


def test_a_users_mistake_ends_the_run(world: World) -> None:
    member = Scripted("worker", world.events)
    member.broken = UserError("no model", "give one")
    with pytest.raises(UserError, match="no model"):
        world.supervisor.add(member)


def test_a_member_without_heartbeats_for_too_long_is_started_again(world: World) -> None:
    world.add("worker", beat="rollout-0")
    world.check(90)
    assert world.events == ["start worker"], "it may take 100 s to start"
    world.beating = {"rollout-0"}
    world.check(200)
    world.beating = set()
    world.check(28)
    assert world.events == ["start worker"]
    world.check(8)
    assert world.events == ["start worker", "stop worker", "start worker"]
    assert "no heartbeat for 30 s (supervision.silence_seconds)" in world.notes[0]


def test_a_member_that_never_gets_ready_is_started_again(world: World) -> None:
    world.add("worker", beat="rollout-0")
    world.check(103)
    assert world.events == ["start worker", "stop worker", "start worker"]
    assert "not ready within 100 s (supervision.start_seconds)" in world.notes[0]


def test_silence_is_not_counted_while_the_supervisor_looked_away(world: World) -> None:
    """The controller waited for Redis for ten minutes: its members beat again at the next look but one."""
    world.add("worker", beat="rollout-0")
    world.beating = {"rollout-0"}
    world.check(20)
    world.now += 600
    world.beating = set()
    world.check(4)
    world.beating = {"rollout-0"}
    world.check(60)
    assert world.events == ["start worker"]


def test_members_stop_in_reverse_order_and_one_failure_spares_none(world: World) -> None:
    class Stubborn(Scripted):
        def stop(self) -> None:
            super().stop()
            raise EngineFault("will not die")

    members = (Scripted("first", world.events, role="environment"), Stubborn("second", world.events),
               Scripted("third", world.events, role="learner"))
    for member in members:
        world.supervisor.add(member)
    world.supervisor.stop()
    assert world.events[3:] == ["stop third", "stop second", "stop first"]
    assert world.notes == ["could not stop second: will not die"]
    world.supervisor.add(members[1])
    world.supervisor.remove(members[1])
    assert not world.supervisor.watches(members[1])
    assert world.notes == 2 * ["could not stop second: will not die"]


def test_members_of_a_role_stop_at_once_because_each_may_take_long(world: World) -> None:
    all_asked = threading.Barrier(3, timeout=10)

    class Slow(Scripted):
        def stop(self) -> None:
            all_asked.wait()  # raises a RuntimeError after its timeout
            super().stop()

    for name in ("first", "second", "third"):
        world.supervisor.add(Slow(name, world.events, role="environment"))
    world.add("worker")
    world.check(1)
    world.supervisor.stop()
    assert world.events[4] == "stop worker"
    assert sorted(world.events[5:]) == ["stop first", "stop second", "stop third"]
    assert world.notes == []


def test_a_member_without_a_place_says_so_once_and_is_not_late(world: World) -> None:
    world.add("worker")
    second = world.add("second", beat="rollout-1")
    second.answers, second.needs = False, "needs 1 bundle of 1 GPU, and the cluster has none"
    world.check(150)
    assert world.notes == ["second needs 1 bundle of 1 GPU, and the cluster has none; it waits"]
    assert world.supervisor.states()["rollout", "unplaced"] == 1
    second.needs = ""
    world.check(60)
    assert world.notes[1:] == ["second has its place"]
    assert world.events == ["start worker", "start second"], "its 100 s begin with its place"
    world.check(50)
    assert world.events[2:] == ["stop second", "start second"]


def test_the_wait_for_a_role_ends_without_members_that_have_no_place_or_are_sick(world: World, monkeypatch) -> None:
    """A run that starts goes on with the servers that it has. One that only takes its time is waited for."""
    class Sick(Scripted):
        def start(self) -> None:
            super().start()
            self.end = End("killed", killed=True)

    unplaced, slow, _ = (world.add(name, role="environment") for name in ("unplaced", "slow", "good"))
    world.supervisor.add(Sick("sick", world.events, role="environment"))
    unplaced.answers, unplaced.needs = False, "needs 1 bundle of 1 CPU, and none of the cluster's is free"
    slow.answers, begun = False, world.now

    def sleep(seconds: float) -> None:
        world.now += 10 * seconds
        slow.answers = world.now > begun + 90
        assert world.now < begun + 2000, "it waits for a member that may never come"

    monkeypatch.setattr(supervise.time, "sleep", sleep)
    world.supervisor.wait("environment")
    assert slow.answers
    assert world.supervisor.states()["environment", "running"] == 2


def test_a_role_without_a_place_for_too_long_ends_the_run_unless_another_member_stands_in(world: World) -> None:
    first = world.add("first")
    world.check(1)
    for name in ("second", "third"):
        world.add(name).needs = "needs 1 bundle of 1 GPU, and the cluster has none"
    world.check(SETTINGS.place_seconds + 10, step=5)
    world.supervisor.remove(first)
    with pytest.raises(Fault, match=r"second needs 1 bundle of 1 GPU.* not changed for 500 s \(supervision.place_sec"):
        world.check(10)


def test_late_heartbeats_of_a_former_process_do_not_make_the_next_one_ready():
    now, beats = [0.0], dict[str, dict[str, Any]]()
    supervisor = Supervisor(lambda _: None, SupervisionSection(), clock=lambda: now[0], beats=lambda: beats)
    member = Scripted("worker", [], beat="rollout-0")

    def hear(count: int) -> None:
        for _ in range(count):
            now[0] += LOOK_S
            beats["rollout-0"] = {"at": now[0]}
            supervisor.check()

    supervisor.add(member)
    hear(STALE_BEATS + 1)
    assert not supervisor.waits
    member.end = End("killed", killed=True)
    supervisor.check()
    supervisor.check()
    hear(STALE_BEATS)
    assert supervisor.waits
    hear(1)
    assert not supervisor.waits


class Crew:
    """A supervised fleet with a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events: list[str] = []
        self.notes: list[str] = []
        self.made: list[Scripted] = []
        self.supervisor = Supervisor(self.notes.append, SupervisionSection(drain_seconds=60), clock=lambda: self.now)
        self.fleet = Fleet(self.supervisor, self.make)

    def make(self, index: int) -> Scripted:
        self.made.append(Scripted(f"worker {index}", self.events))
        return self.made[-1]

    def want(self, count: int) -> list[str]:
        """Wants `count` members. Returns the events since the last call."""
        self.events.clear()
        self.fleet.want(count)
        self.supervisor.check()
        return list(self.events)

    def state(self, name: str) -> int:
        return self.supervisor.states()["rollout", name]


@pytest.fixture
def crew() -> Crew:
    return Crew()


def test_members_beyond_the_number_finish_their_work_before_they_leave(crew: Crew):
    assert crew.want(3) == ["start worker 0", "start worker 1", "start worker 2"]
    assert crew.want(1) == ["drain worker 2", "drain worker 1"]
    assert (crew.state("running"), crew.state("draining")) == (1, 2)
    crew.made[2].end = End("")
    assert crew.want(1) == ["stop worker 2"]
    assert crew.state("draining") == 1
    assert [one.name for one in crew.fleet.members] == ["worker 0"]


def test_a_number_is_not_used_again_while_its_member_drains(crew: Crew):
    crew.want(2)
    crew.want(1)
    assert crew.want(2) == ["start worker 2"]
    crew.made[1].end = End("")
    crew.want(2)
    assert crew.want(3) == ["start worker 1"]


def test_a_member_that_takes_too_long_to_leave_is_stopped(crew: Crew):
    crew.want(2)
    crew.want(1)
    crew.now = 59.0
    assert crew.want(1) == []
    crew.now = 61.0
    assert crew.want(1) == ["stop worker 1"]
    assert crew.notes == ["worker 1 finishes its work and leaves", "worker 1 was stopped after 60 s"]


def test_a_draining_member_that_dies_is_not_started_again(crew: Crew):
    crew.want(2)
    crew.want(1)
    crew.made[1].end = End("killed", killed=True)
    assert crew.want(1) == ["stop worker 1"]
    crew.now = 500.0
    assert crew.want(1) == []


def test_a_member_that_is_not_ready_yet_has_nothing_to_finish(crew: Crew):
    crew.want(1)
    crew.fleet.want(2)
    crew.made[1].answers = False
    assert crew.want(1) == ["stop worker 1"]

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
