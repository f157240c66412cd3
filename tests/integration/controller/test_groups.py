"""The controller issues, drops and replaces groups, also after a restart. Over a real Redis."""

import time

import pytest

from services.controller.skip import skip_step
from services.controller.task_streams import TaskStream
from services.errors import Fault, LeaseLost
from services.records import Drop, Manifest


@pytest.mark.parametrize("staleness", [0, 1])
def test_issue_goes_up_to_capacity_and_never_beyond(world, staleness):
    """At most (steps trained + 1 + staleness) x 2 groups, and never more than 4 steps x 2, which will be trained."""
    run = world(staleness=staleness, eval_every=0)
    controller = run.controller()
    for trained in range(5):
        controller.tick()
        controller.tick()
        assert run.store.counts().issued == min(trained + 1 + staleness, 4) * 2
        run.play()
        assert run.train() == (trained < 4)
    assert [group for step in run.trained for group in step] == [f"train/{n:08d}" for n in range(8)]


@pytest.mark.parametrize(("staleness", "rounds", "playable"), [
    (1, 1, [3, 3, 3, 3, 0]), (1, 0, [2, 2, 2, 2, 0]), (0, 1, [0, 0, 0, 0, 0])])
def test_samplers_also_play_what_replaces_groups_while_the_learner_trains(world, staleness, rounds, playable):
    """Two groups a step, and in each step the oldest one is replaced. While step s is trained, groups are playable that
    need the weights of step s - 1 at most: those of step s + 1, of which one will be replaced. The last step replaces
    none, so with `rounds` one is left over."""
    run, found = world(staleness=staleness, eval_every=0, steps=5, dynamic_sampling=rounds), []
    controller = run.controller()
    run.publish(0)
    for step in range(1, 6):
        for replaces in (True, False):
            controller.tick()
            run.play()
            if replaces and step < 5:
                lease, oldest = run.store.leases.acquire("learner", "toy-learner"), run.store.ready("train")[0]
                assert run.store.drop(lease, Drop(group=oldest, task="", reason="uniform reward 0"))
        assert run.train()
        controller.tick()
        supply = run.store.supply()
        found.append(sum(run.store.needs(group) <= step - 1 for group in (*supply.ready, *supply.unfinished)))
    assert found == playable
    assert len(run.trained) == 5
    left_over = [drop.reason for drop, _ in run.dropped]
    assert left_over == ["over-age: no learner step is left for it"] * (staleness * rounds)
    counts = run.store.counts()
    assert (counts.outstanding_tickets, counts.ready_groups, run.store.counts().trained) == (0, 0, 10)


def test_tickets_come_in_order_and_name_the_step_that_they_need(world):
    """At staleness 0, the groups of step s + 1 need the weights of step s."""
    run = world(eval_every=0)
    controller = run.controller()
    for _ in range(3):
        controller.tick()
        run.play()
        run.train()
    assert [(t.group, t.k, t.min_step) for t in run.played] == [
        (f"train/{n:08d}", k, n // 2) for n in range(6) for k in range(2)]
    stream = TaskStream([f"toy/train/{letter}" for letter in "abcdef"], seed=0)
    assert [t.task for t in run.played[::2]] == [stream[n] for n in range(6)]


def test_every_ticket_names_the_type_of_its_task(world):
    run = world()
    controller = run.controller()
    controller.tick()
    run.publish(0)
    controller.tick()
    issued = run.play()
    assert {ticket.kind for ticket in issued} == {"train", "eval"}
    assert all(ticket.task_type == ticket.task[-1] for ticket in issued)


@pytest.mark.parametrize(("judge", "carried"), [
    ({"questions": 1, "correction": True}, ["", "Do not go back."]), ({"questions": 1}, ["", ""])])
def test_groups_carry_the_instructions_of_the_moment_of_their_issue(world, judge, carried):
    """Both members of a group have the same ones, and evaluations none."""
    run = world(judge=judge)
    controller = run.controller()
    controller.tick()
    run.play()
    run.store.state.correct("Do not go back.")
    run.train()
    run.publish(0)
    for _ in range(3):
        controller.tick()
        run.play()
    shown = {ticket.group: set() for ticket in run.played}
    for ticket in run.played:
        shown[ticket.group].add(ticket.correction)
    assert [shown[f"train/{n:08d}"] for n in range(4)] == [{carried[0]}] * 2 + [{carried[1]}] * 2
    assert {text for group, texts in shown.items() if group.startswith("eval/") for text in texts} == {""}


def test_a_group_out_of_attempts_is_dropped_and_replaced(world):
    run = world(eval_every=0)
    controller = run.controller()
    controller.tick()
    for _ in range(3):
        run.play(broken=lambda ticket: ticket.id == "train/00000000#1")
    controller.tick()
    counts = run.store.counts()
    assert (counts.issued, counts.dropped) == (3, 1)
    assert run.store.outstanding_groups() == ["train/00000002"]
    (note,) = run.notes
    assert note.startswith("dropped train/00000000 (toy/train/")
    assert note.endswith("env: the game is broken")
    ((drop, episodes),) = run.dropped
    assert (drop.group, drop.steps, [e.ticket.id for e in episodes]) == ("train/00000000", 1, ["train/00000000#0"])
    run.play()
    assert run.train()
    assert run.trained == [["train/00000001", "train/00000002"]]


def test_a_task_that_fails_twice_is_not_given_out_again(world):
    """Five of six tasks remain; both failures are beyond the hundredth group, so they are below one in a hundred."""
    run = world(eval_every=0, steps=150)
    controller = run.controller()
    stream = TaskStream([f"toy/train/{letter}" for letter in "abcdef"], seed=0)
    bad = stream[0]
    for _ in range(12):
        controller.tick()
        for _ in range(3):
            run.play(broken=lambda ticket: ticket.task == bad)
        controller.tick()
        run.play()
        run.train()
    assert sum(note.startswith("dropped") for note in run.notes) == 2
    assert run.store.counts().dropped == 2
    assert {ticket.task for ticket in run.played} == {stream[n] for n in range(6)} - {bad}


def test_groups_that_the_learner_drops_do_not_count_as_failures(world):
    """Nine groups of nine dropped for their uniform reward, then one by a broken game: the run goes on, no task is
    avoided, and the learner gets its groups."""
    run = world(eval_every=0)
    controller = run.controller()
    learner = run.store.leases.acquire("learner", "toy-learner")
    for number in range(9):
        controller.tick()
        run.play()
        group = f"train/{number:08d}"
        assert run.store.drop(learner, Drop(group=group, task=run.store.task_of(group), reason="uniform reward 0"))
    controller.tick()
    for _ in range(3):
        run.play(broken=lambda ticket: ticket.group == "train/00000010")
    controller.tick()
    run.play()
    counts = run.store.counts()
    assert (counts.issued, counts.dropped, counts.ready_groups) == (12, 10, 2)
    assert run.train()
    assert [ticket.min_step for ticket in run.played] == [0] * len(run.played)
    stream = TaskStream([f"toy/train/{letter}" for letter in "abcdef"], seed=0)
    assert [t.task for t in run.played if t.k == 0] == [stream[n] for n in range(12) if n != 10]


def test_more_than_one_in_a_hundred_failed_stops_the_run_with_the_reason(world):
    run = world(eval_every=0)
    controller = run.controller()
    for _ in range(2):
        controller.tick()
        for _ in range(3):
            run.play(broken=lambda ticket: True)
    with pytest.raises(Fault, match=r"3 of 4 groups failed, more than 1%.*the game is broken"):
        controller.tick()


def test_a_lost_lease_stops_the_controller_before_another_write(world):
    run = world()
    controller = run.controller(ttl_s=0.05)
    time.sleep(0.1)
    run.store.leases.acquire("controller", "usurper")
    with pytest.raises(LeaseLost, match="usurper"):
        controller.tick()
    with pytest.raises(LeaseLost):
        controller.issue()
    assert run.store.counts().issued == 0


def test_a_restarted_controller_goes_on_where_issue_stopped(world):
    """The controller is killed after every tick. Still the groups are those of one process: none missing,
    none twice."""
    restarted, whole = world(eval_every=0), world(eval_every=0)
    controller = whole.controller()
    for _ in range(4):
        restarted.controller().tick()
        restarted.controller().tick()
        controller.tick()
        for run in (restarted, whole):
            run.play(3)
            run.play()
            run.train()
    assert [(t.id, t.task, t.seed, t.min_step) for t in restarted.played] == [
        (t.id, t.task, t.seed, t.min_step) for t in whole.played]
    assert restarted.trained == whole.trained


def test_an_interrupted_process_uses_up_no_attempt_of_its_tickets(world):
    """Ten processes end while a worker holds every ticket. The eleventh plays the groups in order."""
    run = world(eval_every=0)
    for life in range(10):
        controller = run.controller()
        assert run.store.reissue(controller.lease) == (4 if life else 0)
        controller.tick()
        store = run.connect()
        held = store.claim("worker", 100)
        assert [(claim.ticket.id, claim.attempt) for claim in held] == [
            (f"train/{n:08d}#{k}", 1) for n in range(2) for k in range(2)]
    run.store.reissue(controller.lease)
    assert run.commit(held[0]) == "refused"
    assert store.renew_claims("worker", held) == held
    run.play()
    assert run.train()
    assert run.store.counts().dropped == 0


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_skipped_step_gets_groups_that_can_be_played(world, staleness):
    """The two groups that were issued last wait for the weights of the skipped step, and it waits for groups."""
    run = world(staleness=staleness, eval_every=0)
    controller = run.controller()
    controller.tick()
    run.play()
    assert run.train()
    controller.tick()
    run.play()
    groups = run.store.ready("train")[:2]
    run.store.steps.begin(run.store.leases.acquire("learner", "toy-learner"),
                          Manifest(step=2, incarnation=1, groups=groups, drops=[]))
    controller.tick()  # issues two groups that need the weights of step 2
    kept = []
    skip_step(run.store, controller.lease, 2, keep=lambda dropped: kept.extend(drop.group for drop in dropped))
    last = 4 + 2 * staleness
    assert kept == [f"train/{n:08d}" for n in (last, last + 1, 2, 3)]
    controller.tick()
    claims = run.store.claim("worker", 100, own=run.store.state.version()[0])
    assert len(claims) == 4
    assert {run.commit(claim) for claim in claims} == {"accepted"}
    assert run.train()
    counts = run.store.counts()
    assert (counts.trained, counts.last_step) == (4, 2)
