"""A run without progress ends, and the watchdog names the part that is stuck. Over a real Redis."""

import pytest
from scripted_member import Scripted

from services.errors import Fault
from services.telemetry.heartbeat import NO_SERVERS


@pytest.mark.parametrize(("moves", "stuck"), [
    (("tick",), r"the rollout workers: 4 tickets are outstanding, but none is finished"),
    (("tick", "play"), r"the learner: enough groups are ready, but it takes none"),
    ((), r"the learner: it neither trains nor publishes"),
])
def test_the_watchdog_names_the_loop_that_is_stuck(world, moves, stuck):
    run = world(eval_every=0)
    controller = run.controller()
    for move in moves:
        {"tick": controller.tick, "play": run.play}[move]()
    controller.watch()
    run.now = run.config.supervision.stall_seconds - 1
    controller.watch()
    run.now = run.config.supervision.stall_seconds
    with pytest.raises(Fault, match=rf"no progress for 3600 s \(supervision\.stall_seconds\) in {stuck}"):
        controller.watch()


def test_a_turn_of_a_worker_resets_the_watchdog(world):
    """An episode may take hours, as long as turns are finished."""
    run = world(eval_every=0)
    controller = run.controller()
    controller.tick()
    for turn in range(5):
        run.now += run.config.supervision.stall_seconds - 1
        run.store.state.beat("rollout-0", {"at": turn, "progress": turn})
        controller.supervisor.check()
        controller.watch()


def test_the_watchdog_does_not_count_the_wait_for_a_process_that_starts(world):
    run = world(eval_every=0)
    controller = run.controller()
    absent = Scripted("worker", [])
    absent.answers = False
    controller.supervisor.add(absent)
    for _ in range(5):
        run.now += run.config.supervision.stall_seconds
        controller.watch()


def test_waiting_for_environment_servers_is_shown_and_is_no_stall(world):
    """The wait may be as long as it likes. Once a server answers, the watchdog counts again."""
    run = world(eval_every=0)
    controller = run.controller()
    controller.tick()
    beat = {"role": "rollout", "doing": NO_SERVERS, "at": 1.0}
    for _ in range(3):
        run.now += run.config.supervision.stall_seconds
        run.store.state.beat("rollout-0", beat)
        controller.tick()
    assert run.waits == ["waiting for environment servers"]
    run.store.state.beat("rollout-0", {**beat, "doing": "playing"})
    run.now += 3
    controller.tick()
    assert run.waits[1:] == [""]
    run.now += run.config.supervision.stall_seconds
    with pytest.raises(Fault, match="no progress"):
        controller.watch()


@pytest.mark.parametrize("starts", [True, False])
def test_only_the_wait_for_servers_that_the_run_starts_itself_raises_no_alert(world, starts):
    run = world(eval_every=0)
    controller = run.controller()
    server = Scripted("environment server 0", [], role="environment")
    server.answers = not starts
    controller.supervisor.add(server)
    moved = controller.telemetry.heartbeat.meters("gagpo_controller_progress_timestamp_seconds")
    run.store.state.beat("rollout-0", {"role": "rollout", "doing": NO_SERVERS, "at": 1.0})
    controller.tick()
    moved.set(0)
    controller.tick()
    assert (moved._value.get() > 0) == starts


def test_any_progress_resets_the_watchdog(world):
    """One episode an hour is slow but not stuck. Groups of an evaluation count too."""
    run = world()
    controller = run.controller()
    run.publish(0)
    for _ in range(8):
        controller.tick()
        run.now += run.config.supervision.stall_seconds - 1
        assert run.play(1)
    controller.tick()
