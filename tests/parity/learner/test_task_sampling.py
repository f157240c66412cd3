"""Tasks are sampled by type: controller, worker and learner take turns over a real Redis and a real metrics.jsonl."""

import uuid

import msgspec
import numpy as np
import pytest
from learner_tiny import make_config, make_step
from loop_tiny import Crash, run_all_parts

from services.config.tree import Config
from services.controller.task_streams import ContrastSampler, TaskStream
from services.controller.tickets import TrainTickets
from services.records import Episode
from services.seeds import seed_for
from services.store.store import Store
from services.telemetry.metrics_file import read_metrics

TASKS = [f"{kind}-{n}" for kind in ("easy", "even", "hard") for n in range(8)]
STEPS = 6
WON = {"easy": 4, "even": 2, "hard": 0}
"""Episodes of four that are won, by type."""


def type_of(task):
    return task.partition("-")[0]


def an_episode(claim):
    rng = np.random.default_rng(seed_for(claim.ticket.id))
    won = claim.ticket.k < WON[claim.ticket.task_type]
    steps = [make_step(rng, observation=str(t), step=claim.ticket.min_step) for t in range(2)]
    steps[-1] = msgspec.structs.replace(steps[-1], reward=10.0 * won)
    return Episode(ticket=claim.ticket, steps=steps, won=won, end="won" if won else "turns", worker="w",
                   attempt=claim.attempt, seconds=0.1, engine="e")


def life(store, folder, model_path, rank_group, tasks, *, crash_at=None, checkpoint_every=2):
    """Runs controller, worker and learner until the end, or until they die once `crash_at` steps are trained, before
    the controller has issued the next groups. `tasks` gets the task of each group that is played."""
    config = Config.model_validate(make_config(task_sampling="contrast").model_dump() | {
        "steps": STEPS, "runs_dir": folder, "eval": {"every": 0}, "checkpoint": {"every": checkpoint_every}})
    sampler = ContrastSampler(TASKS, type_of, config.seed, staleness=0,
                              rows=lambda: read_metrics(folder / "metrics.jsonl"))

    def crash():
        if crash_at is not None and store.counts().last_step == crash_at:
            raise Crash

    def play_one(claim):
        assert tasks.setdefault(claim.ticket.group, claim.ticket.task) == claim.ticket.task
        return an_episode(claim)

    run_all_parts(
        store, config, model_path, rank_group, play_one=play_one, check=crash, task_type=type_of, by_type=True,
        tickets=TrainTickets(config=config, tasks=TaskStream(TASKS, seed=0), sampler=sampler))
    return sampler


@pytest.fixture(scope="module")
def whole(redis_url, model_path, rank_group, tmp_path_factory):
    folder, tasks = tmp_path_factory.mktemp("sampling"), {}
    sampler = life(Store(redis_url, "sampling"), folder, model_path, rank_group, tasks)
    return folder, tasks, sampler


def test_the_rows_have_the_results_of_the_groups_of_their_step(whole):
    """A group of `even` has the contrast 4 x .5 x .5 = 1, the others have none."""
    folder, tasks, _ = whole
    for row in read_metrics(folder / "metrics.jsonl"):
        groups = [type_of(tasks[f"train/{index:08d}"]) for index in range(2 * row["step"] - 2, 2 * row["step"])]
        expected = {}
        for kind in groups:
            expected |= {f"type/{kind}/groups": groups.count(kind), f"type/{kind}/success": WON[kind] / 4,
                         f"type/{kind}/contrast": float(kind == "even")}
        assert {key: value for key, value in row.items() if key.startswith("type/")} == expected


def test_a_type_with_contrast_is_drawn_more_often(whole):
    """All types have been played, so `even` weighs 1 and the others .1 each."""
    _, tasks, sampler = whole
    assert {type_of(task) for task in tasks.values()} == {"easy", "even", "hard"}
    assert sampler.shares(STEPS) == pytest.approx({"easy": 1 / 12, "even": 10 / 12, "hard": 1 / 12})


@pytest.mark.parametrize("lost", [False, True], ids=["redis stays", "redis is lost"])
@pytest.mark.parametrize(("crash_at", "checkpoint_every"), [(2, 2), (4, 10), (5, 2)])
def test_an_interrupted_run_plays_the_tasks_of_an_uninterrupted_one(
        whole, redis_url, model_path, rank_group, tmp_path, lost, crash_at, checkpoint_every):
    """With a checkpoint every ten steps the restarted learner has dropped all rows, and repeats the steps: until their
    rows are back the controller issues nothing. An emptied Redis is reset to the checkpoint."""
    tasks, run = {}, uuid.uuid4().hex[:8]
    with pytest.raises(Crash):
        life(Store(redis_url, run), tmp_path, model_path, rank_group, tasks, crash_at=crash_at,
             checkpoint_every=checkpoint_every)
    life(Store(redis_url, f"{run}-emptied" if lost else run), tmp_path, model_path, rank_group, tasks,
         checkpoint_every=checkpoint_every)
    assert tasks == whole[1]
