"""Evaluations are issued at one version, played, reported, begun anew and taken back. Over a real Redis."""

import pytest
from scripted_member import Acting

from services.controller.controller import LOOK_EVERY_S
from services.controller.evaluation import clear
from services.controller.member import End
from services.errors import Fault
from services.records import Drop, Version


def begun(run):
    """Publishes version 0 and lets a controller issue the first tickets. Returns both."""
    run.publish(0)
    controller = run.controller()
    controller.tick()
    return run, controller


def train_tickets(tickets) -> list:
    return [ticket for ticket in tickets if ticket.kind == "train"]


def test_an_evaluation_is_played_at_its_version_and_then_marked(world):
    """Training continues meanwhile. The step is marked only after its result is reported."""
    run = world()
    controller = run.controller()
    version = run.publish(0)
    controller.tick()
    tickets = run.play(3)
    controller.tick()
    assert run.results == []
    assert run.store.state.evaluated() == -1
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
    assert run.store.state.evaluated() == 0
    assert run.store.retained_bytes() > 0  # the training episodes alone
    assert run.store.ready("eval") == []


def test_an_evaluation_ends_once_its_weights_are_on_disk(world):
    """Its games are played while the learner writes them."""
    run, on_disk = world(), []
    controller = run.controller()
    controller.weights_kept = on_disk.__contains__
    version = run.publish(0)
    controller.tick()
    run.play()
    controller.tick()
    assert (run.results, run.store.state.evaluated()) == ([], -1)
    on_disk.append(version)
    controller.tick()
    ((summary, episodes),) = run.results
    assert (summary["version"], len(episodes), run.store.state.evaluated()) == (version.short, 4, 0)


def test_steps_that_are_not_due_are_not_evaluated(world):
    """Steps 0, 2 and 4 are evaluated, each at the version of its step."""
    run = world()
    controller = run.controller()
    run.take(controller, 5)
    controller.tick()
    assert [summary["step"] for summary, _ in run.results] == [0, 2, 4]
    assert {t.exact_version.step for t in run.played if t.kind == "eval"} == {0, 2, 4}


def test_a_game_that_failed_is_left_out_of_its_evaluation(world):
    run, controller = begun(world())
    for _ in range(3):
        run.play(broken=lambda ticket: ticket.task == "toy/valid/x")
    controller.tick()
    controller.tick()
    ((summary, _),) = run.results
    assert (summary["tasks"], summary["dropped"], list(summary["success_by_task"])) == (1, 1, ["toy/valid/y"])
    assert run.store.counts().dropped == 0


def test_an_evaluation_game_with_a_too_long_first_prompt_is_named_and_does_not_count_as_lost(world):
    run, controller = begun(world())
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


def test_an_evaluation_whose_games_all_failed_stops_the_run(world):
    run, controller = begun(world())
    for _ in range(3):
        run.play(broken=lambda ticket: ticket.kind == "eval")
    with pytest.raises(Fault, match="evaluation at step 0: every one of its groups was dropped"):
        controller.tick()


def test_failed_groups_of_an_evaluation_exclude_no_task_from_training(world):
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


def test_an_evaluation_cut_short_is_played_anew_at_the_new_version(world):
    """Its version was lost with the weights actor of the earlier process, so its tickets and results are
    dropped too."""
    run = world()
    run.publish(0)
    run.controller().tick()
    run.play(3)  # one group of the task set is finished, one is half done
    again = run.controller()
    clear(run.store, again.lease)
    assert run.store.outstanding_groups() == ["train/00000001"], "training keeps its groups"
    assert not run.store.drop(again.lease, Drop(group="eval/step-0/0.5/00000", task="", reason=""))
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
    run, controller = begun(world())
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
    assert f"evaluation at step 0 begins anew: {gone}" in run.notes


def test_an_evaluation_that_redis_has_lost_is_issued_again_and_its_mark_is_set_again(world):
    """Redis loses its last second if its machine dies: here the games that were just issued, later the mark."""
    run, controller = begun(world())
    lost = [group for group in run.store.outstanding_groups() if group.startswith("eval/")]
    key, redis = run.store.connection.key, run.store.connection.redis
    redis.zrem(key("groups"), *lost)
    redis.hdel(key("outstanding"), *(f"{group}#{k}" for group in lost for k in range(2)))
    redis.delete(key("evals"))
    run.now += LOOK_EVERY_S
    controller.tick()
    run.play()
    controller.tick()
    run.store.connection.redis.hdel(run.store.connection.key("counters"), "evaluated")
    run.now += LOOK_EVERY_S
    controller.tick()
    assert run.store.state.evaluated() == 0
    ((summary, episodes),) = run.results
    assert (summary["step"], len(lost), len(episodes)) == (0, 2, 4)


def test_an_evaluated_step_is_not_evaluated_again_after_a_restart(world):
    run = world()
    run.publish(0)
    first = run.controller()
    first.tick()
    run.play()
    first.tick()
    run.incarnation = 2
    run.publish(0)
    learner = Acting("learner", lambda: End(""))
    again = run.controller()
    again.supervisor.add(learner)
    again.supervisor.check()
    again.run(learner)
    assert len(run.results) == 1


def gauges(controller, name: str) -> dict[str, float]:
    samples = controller.telemetry.heartbeat.meters.snapshot()[name]
    return {labels.get("task_type", ""): value for _, labels, value in samples}


def test_a_run_that_goes_on_shows_its_last_evaluation_and_does_not_repeat_it(world):
    """The last row of a damaged file lacks values. Held-out games belong to no learner step of the curve."""
    run = world()
    first = {"label": "step-000000", "step": 0, "success_rate": 0.25, "success_by_type": {"x": 0.5, "y": 0.0},
             "episode_length": 2.5}
    panel = first | {"label": "panel-cold", "success_rate": 0.75}
    controller = run.controller()
    controller.resume([first, panel])
    assert run.store.state.evaluated() == 0
    assert gauges(controller, "gagpo_eval_success_ratio") == {"all": 0.25, "x": 0.5, "y": 0.0}
    assert gauges(controller, "gagpo_eval_episode_length_steps") == {"": 2.5}
    damaged = first | {"label": "step-000002", "step": 2, "success_by_type": {"x": None}, "episode_length": None}
    controller = run.controller()
    controller.resume([first, damaged, panel])
    assert run.store.state.evaluated() == 2
    assert gauges(controller, "gagpo_eval_success_ratio") == {"all": 0.25}
    assert gauges(controller, "gagpo_eval_step") == {"": 2}


def test_a_run_ends_with_the_learners_work_and_the_last_evaluation(world):
    """A whole run: each poll of the worker plays, each poll of the learner trains, and the worker dies once."""
    run = world()
    run.publish(0)
    deaths = [End("killed", killed=True)]

    def work():
        run.play(5)
        return deaths.pop() if deaths else None

    def learn():
        pointer = run.store.state.version()[0]
        if run.config.evaluates(pointer.step) and run.store.state.evaluated() < pointer.step and len(run.trained) < 4:
            return None
        run.train()
        return End("") if len(run.trained) == 4 else None

    worker, learner = Acting("worker", work), Acting("learner", learn)
    controller = run.controller()
    for member in (worker, learner):
        controller.supervisor.add(member)
    controller.run(learner)
    assert worker.events == ["start worker", "stop worker", "start worker"]
    assert any("worker died (killed)" in note for note in run.notes)
    assert len(run.trained) == 4
    assert [summary["step"] for summary, _ in run.results] == [0, 2, 4]


def test_requests_run_one_after_the_other_outside_training(world):
    """For held-out games no training ticket is issued, and summaries come in the order of the requests."""
    run = world()
    worker = Acting("worker", lambda: run.play(3) and None)
    controller = run.controller()
    controller.supervisor.add(worker)
    before, after = run.request(run.publish(0)), run.request(run.publish(2))
    summaries = controller.evaluate_now([before, after])
    assert [summary["label"] for summary in summaries] == ["step-0", "step-2"]
    assert run.store.counts().issued == 0
    assert [t.exact_version.step for t in run.played] == [0] * 4 + [2] * 4
    assert run.store.state.evaluated() == -1


def test_steps_that_are_taken_again_are_evaluated_again(world):
    """Step 2 was evaluated, and its checkpoint is damaged: the next learner goes back to step 1. The curve kept the
    score of the lost weights."""
    run = world()
    controller = run.controller()
    run.take(controller, 3)
    assert [summary["version"] for summary, _ in run.results] == ["1.0", "1.2"]
    run.incarnation = 2
    run.store.steps.reset_to(run.store.leases.acquire("learner", "toy-learner"), 1, 2)
    run.publish(1)
    controller.tick()
    assert run.store.state.evaluated() == 1
    for _ in range(2):
        run.play()
        run.train()
        controller.tick()
    run.play()
    controller.tick()
    assert [summary["version"] for summary, _ in run.results] == ["1.0", "1.2", "2.2"]
    assert run.notes == ["the learner went back to step 1: evaluations of later steps are made again"]


def test_an_unfinished_evaluation_of_lost_weights_is_given_up(world):
    """It went on with the weights that workers still held, and its score belonged to no checkpoint."""
    run = world()
    controller = run.controller()
    run.take(controller, 2)
    controller.tick()
    assert run.store.counts().last_step == 2
    assert any(group.startswith("eval/step-2") for group in run.store.outstanding_groups())
    run.incarnation = 2
    run.store.steps.reset_to(run.store.leases.acquire("learner", "toy-learner"), 1, 2)
    controller.tick()
    assert run.store.outstanding_groups() == ["train/00000002", "train/00000003"]
    assert run.store.claim("worker", 100, own=Version(incarnation=1, step=2)) == []  # their weights are lost ones, too
    run.publish(1)
    for _ in range(3):
        run.play()
        run.train()
        controller.tick()
    assert [summary["version"] for summary, _ in run.results] == ["1.0", "2.2"]
    assert run.notes == [
        "evaluation at step 2 begins anew: the learner went back to a step before 2, and takes it again"]
