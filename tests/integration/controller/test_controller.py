"""The controller issues, evaluates, drops and refuses groups, over a real Redis."""

import time

import pytest

from services.controller.evaluation import clear
from services.controller.member import End
from services.controller.tickets import TaskStream
from services.errors import Fault, LeaseLost
from services.records import Drop
from services.telemetry.heartbeat import NO_SERVERS


class Scripted:
    """A member that acts when it is polled, and records its calls."""

    beat = None

    def __init__(self, name: str, turn) -> None:
        self.name, self.role, self.turn, self.events = name, name, turn, []

    def start(self) -> None:
        self.events.append("start")

    def ready(self) -> bool:
        return True

    def lacks(self) -> str:
        return ""

    def poll(self) -> End | None:
        return self.turn()

    def drain(self) -> None:
        self.events.append("drain")

    def stop(self) -> None:
        self.events.append("stop")


class Absent(Scripted):
    """A member that starts but never becomes ready."""

    def __init__(self) -> None:
        super().__init__("worker", lambda: None)

    def ready(self) -> bool:
        return False


def train_tickets(tickets) -> list:
    return [ticket for ticket in tickets if ticket.kind == "train"]


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


def test_an_evaluation_is_played_at_its_version_and_then_marked(world):
    """Training continues meanwhile. The step is marked only after its result is reported."""
    run = world()
    controller = run.controller()
    version = run.publish(0)
    controller.tick()
    tickets = run.play(3)
    controller.tick()
    assert run.results == []
    assert run.store.evaluated() == -1
    tickets += run.play()
    controller.tick()
    evaluation = [ticket for ticket in tickets if ticket.kind == "eval"]
    assert {ticket.exact_version for ticket in evaluation} == {version}
    assert sorted(ticket.task for ticket in evaluation) == ["toy/valid/x"] * 2 + ["toy/valid/y"] * 2
    assert len(train_tickets(tickets)) == 4
    ((summary, episodes),) = run.results
    assert len(episodes) == 4
    assert (summary["step"], summary["tasks"], summary["episodes"], summary["success_rate"]) == (0, 2, 4, 0.5)
    assert summary["success_by_type"] == {"x": 0.5, "y": 0.5}
    assert run.done_when_told == [-1]
    assert run.store.evaluated() == 0
    assert run.store.retained_bytes() > 0  # the training episodes alone
    assert run.store.ready("eval") == []


def test_steps_that_are_not_due_are_not_evaluated(world):
    """Steps 0, 2 and 4 are evaluated, each at the version of its step."""
    run = world()
    controller = run.controller()
    run.publish(0)
    for _ in range(5):
        controller.tick()
        run.play()
        controller.tick()
        run.train()
    controller.tick()
    assert [summary["step"] for summary, _ in run.results] == [0, 2, 4]
    assert {t.exact_version.step for t in run.played if t.kind == "eval"} == {0, 2, 4}


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


def test_what_the_learner_drops_is_no_failure(world):
    """Nine groups of nine dropped for their uniform reward, then one by a broken game: the run goes on, no task is
    avoided, and the learner gets its groups."""
    run = world(eval_every=0)
    controller = run.controller()
    learner = run.store.acquire("learner", "toy-learner")
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


def test_a_game_that_a_fault_took_is_missing_from_its_evaluation(world):
    run = world()
    controller = run.controller()
    run.publish(0)
    controller.tick()
    for _ in range(3):
        run.play(broken=lambda ticket: ticket.task == "toy/valid/x")
    controller.tick()
    controller.tick()
    ((summary, _),) = run.results
    assert (summary["tasks"], summary["dropped"], list(summary["success_by_task"])) == (1, 1, ["toy/valid/y"])
    assert run.store.counts().dropped == 0


def test_an_evaluation_game_whose_first_prompt_is_too_long_is_named_and_is_no_loss(world):
    run = world()
    controller = run.controller()
    run.publish(0)
    controller.tick()
    too_long = {"steps": [], "won": False, "end": "context"}
    for _ in range(3):
        for claim in run.store.claim("worker", 100, min_idle_s=0.0):
            run.commit(claim, **too_long if claim.ticket.task == "toy/valid/x" else {})
    controller.tick()
    controller.tick()
    ((summary, _),) = run.results
    assert (summary["tasks"], summary["dropped"], summary["success_rate"]) == (1, 1, 0.5)
    assert run.notes == ["dropped eval/step-0/0.5/00000 (toy/valid/x): env: the first prompt has more tokens than "
                         "rollout.max_prompt_tokens"]


def test_an_evaluation_without_one_game_stops_the_run(world):
    run = world()
    controller = run.controller()
    run.publish(0)
    controller.tick()
    for _ in range(3):
        run.play(broken=lambda ticket: ticket.kind == "eval")
    with pytest.raises(Fault, match="step-0: every one of its groups was dropped"):
        controller.tick()


def test_evaluation_failures_quarantine_nothing(world):
    """Failed groups of a finished evaluation are dropped and do not affect training."""
    run = world()
    controller = run.controller()
    for tickets in run.request(run.publish(0)).tickets():
        run.store.issue(controller.lease, tickets, capacity=0)
    for _ in range(3):
        run.play(broken=lambda ticket: True)
    controller.drop_failed()
    assert run.store.outstanding_groups() == []
    assert not controller._task_failures


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
    with pytest.raises(Fault, match=f"no progress for 3600 s in {stuck}"):
        controller.watch()


def test_a_turn_that_a_worker_played_calms_the_watchdog(world):
    """An episode may take hours, as long as turns are finished."""
    run = world(eval_every=0)
    controller = run.controller()
    controller.tick()
    for turn in range(5):
        run.now += run.config.supervision.stall_seconds - 1
        run.store.beat("rollout-0", {"at": turn, "progress": turn})
        controller.supervisor.check()
        controller.watch()


def test_the_watchdog_does_not_count_the_wait_for_a_process_that_starts(world):
    run = world(eval_every=0)
    controller = run.controller()
    controller.supervisor.add(Absent())
    for _ in range(5):
        run.now += run.config.supervision.stall_seconds
        controller.watch()


def test_the_wait_for_environment_servers_is_told_and_is_no_stall(world):
    """The wait may be as long as it likes. Once a server answers, the watchdog counts again."""
    run = world(eval_every=0)
    controller = run.controller()
    controller.tick()
    beat = {"role": "rollout", "doing": NO_SERVERS, "at": 1.0}
    for _ in range(3):
        run.now += run.config.supervision.stall_seconds
        run.store.beat("rollout-0", beat)
        controller.tick()
    assert run.waits == ["waiting for environment servers"]
    run.store.beat("rollout-0", {**beat, "doing": "playing"})
    run.now += 3
    controller.tick()
    assert run.waits[1:] == [""]
    run.now += run.config.supervision.stall_seconds
    with pytest.raises(Fault, match="no progress"):
        controller.watch()


def test_any_movement_calms_the_watchdog(world):
    """One episode an hour is slow but not stuck. Groups of an evaluation count too."""
    run = world()
    controller = run.controller()
    run.publish(0)
    for _ in range(8):
        controller.tick()
        run.now += run.config.supervision.stall_seconds - 1
        assert run.play(1)
    controller.tick()


def test_a_lost_lease_stops_the_controller_before_another_write(world):
    run = world()
    controller = run.controller(ttl_s=0.05)
    time.sleep(0.1)
    run.store.acquire("controller", "usurper")
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


def test_an_evaluation_cut_short_is_played_anew_at_the_new_version(world):
    """Its version was lost with the weights actor of the earlier process, so its tickets and results are
    dropped too."""
    run = world()
    run.publish(0)
    run.controller().tick()
    run.play(3)  # one group of the task set is finished, one is half done
    again = run.controller()
    clear(run.store, again.lease)
    assert not [group for group in run.store.outstanding_groups() if group.startswith("eval/")]
    assert run.store.ready("eval") == []
    run.incarnation = 2
    version = run.publish(0)
    again.tick()
    run.play()
    again.tick()
    ((summary, episodes),) = run.results
    assert summary["version"] == version.short == "2.0"
    assert [e.ticket.exact_version for e in episodes] == [version] * 4


def test_an_evaluation_begins_anew_if_nobody_has_its_weights_any_more(world):
    """The store still names the version of a run that was killed. The first learner after it publishes another one."""
    run = world()
    run.publish(0)
    controller = run.controller()
    controller.tick()
    run.incarnation = 2
    version = run.publish(0)
    gone = "nobody has the weights of version 1.0 any more"
    for _ in range(3):
        for claim in run.store.claim("worker", 100, min_idle_s=0.0):
            if claim.ticket.kind == "eval":
                run.store.fail(claim, gone)
    controller.tick()
    assert run.results == []
    run.play()
    controller.tick()
    ((summary, episodes),) = run.results
    assert (summary["version"], summary["tasks"], summary["dropped"]) == ("2.0", 2, 0)
    assert [e.ticket.exact_version for e in episodes] == [version] * 4
    assert f"evaluation step-0 begins anew: {gone}" in run.notes


def test_an_evaluated_step_is_not_evaluated_again_after_a_restart(world):
    run = world()
    run.publish(0)
    first = run.controller()
    first.tick()
    run.play()
    first.tick()
    run.incarnation = 2
    run.publish(0)
    learner = Scripted("learner", lambda: End(""))
    again = run.controller()
    again.supervisor.add(learner)
    again.supervisor.check()
    again.run(learner)
    assert len(run.results) == 1


def test_a_run_ends_with_the_learners_work_and_the_last_evaluation(world):
    """A whole run: each poll of the worker plays, each poll of the learner trains, and the worker dies once."""
    run = world()
    run.publish(0)
    deaths = [End("killed", killed=True)]

    def work():
        run.play(5)
        return deaths.pop() if deaths else None

    def learn():
        pointer = run.store.version()[0]
        if run.config.evaluates(pointer.step) and run.store.evaluated() < pointer.step and len(run.trained) < 4:
            return None
        run.train()
        return End("") if len(run.trained) == 4 else None

    worker, learner = Scripted("worker", work), Scripted("learner", learn)
    controller = run.controller()
    for member in (worker, learner):
        controller.supervisor.add(member)
    controller.run(learner)
    assert worker.events == ["start", "stop", "start"]
    assert any("worker died (killed)" in note for note in run.notes)
    assert len(run.trained) == 4
    assert [summary["step"] for summary, _ in run.results] == [0, 2, 4]


def test_requests_run_one_after_the_other_outside_training(world):
    """For held-out games no training ticket is issued, and summaries come in the order of the requests."""
    run = world()
    worker = Scripted("worker", lambda: run.play(3) and None)
    controller = run.controller()
    controller.supervisor.add(worker)
    before, after = run.request(run.publish(0)), run.request(run.publish(2))
    summaries = controller.evaluate_now([before, after])
    assert [summary["label"] for summary in summaries] == ["step-0", "step-2"]
    assert run.store.counts().issued == 0
    assert [t.exact_version.step for t in run.played] == [0] * 4 + [2] * 4
    assert run.store.evaluated() == -1


def test_interruptions_are_no_attempts(world):
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


def test_leftovers_of_training_are_not_cleared(world):
    run = world()
    run.publish(0)
    controller = run.controller()
    controller.tick()
    clear(run.store, controller.lease)
    assert run.store.outstanding_groups() == ["train/00000000", "train/00000001"]
    assert run.store.drop(controller.lease, Drop(group="eval/step-0/0.5/00000", task="", reason="")) is False
