"""The learner goes back to an earlier checkpoint, because the newest one is damaged. Over a real Redis."""

from services.records import Version


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
