"""Groups without spread are replaced: controller, worker and learner take turns over a real Redis."""

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from learner_tiny import make_config, make_step, weights
from loop_tiny import Crash, run_all_parts

from services.config.tree import Config
from services.controller.task_streams import TaskStream
from services.controller.tickets import TrainTickets
from services.records import Episode
from services.seeds import seed_for
from services.store.store import Store
from services.telemetry.metrics_file import read_metrics

UNIFORM = {0: 0.0, 2: 10.0, 3: 0.0, 5: 0.0}
"""Groups whose four episodes all earn this reward. In other groups the first episode wins."""


def an_episode(claim, uniform):
    """Returns an episode that depends only on the ticket and on the groups that are `uniform`."""
    ticket, number = claim.ticket, int(claim.ticket.group.removeprefix("train/"))
    rng = np.random.default_rng(seed_for(ticket.id))
    steps = [make_step(rng, observation=str(t), step=ticket.min_step) for t in range(2)]
    reward = uniform.get(number, 10.0 * (ticket.k == 0))
    steps[-1] = msgspec.structs.replace(steps[-1], reward=reward)
    return Episode(ticket=ticket, steps=steps, won=reward > 0, end="won" if reward else "turns", worker="w",
                   attempt=claim.attempt, seconds=0.1, engine="e", task_score=reward / 20)


def life(store, folder, model_path, rank_group, *, crash_when=lambda counts: False, rounds=1, uniform=UNIFORM):
    """Runs controller, worker and learner. They die when `crash_when` accepts the store's counts."""
    config = Config.model_validate(make_config(dynamic_sampling=rounds).model_dump() | {
        "steps": 2, "runs_dir": folder, "eval": {"every": 0}})

    def crash():
        if crash_when(store.counts()):
            raise Crash

    return run_all_parts(
        store, config, model_path, rank_group, play_one=lambda claim: an_episode(claim, uniform), check=crash,
        tickets=TrainTickets(config=config, tasks=TaskStream(["a", "b", "c"], seed=0)))


def group(number):
    return f"train/{number:08d}"


@pytest.fixture(scope="module")
def whole(redis_url, model_path, rank_group, tmp_path_factory):
    folder, store = tmp_path_factory.mktemp("dynamic"), Store(redis_url, "dynamic")
    return folder, store, life(store, folder, model_path, rank_group)


def test_a_step_replaces_uniform_groups_up_to_its_rounds(whole):
    """One round of two groups: step 1 drops 0 and what replaced it, 2, and takes 3 as it is. Step 2 has its own round:
    5 goes, 6 comes. No group is issued that no step trains on."""
    folder, store, _ = whole
    first, second = store.steps.manifests(0)
    assert [first.groups, second.groups] == [[group(1), group(3)], [group(4), group(6)]]
    assert [(drop.group, drop.reason, drop.steps) for drop in first.drops] == [
        (group(0), "uniform reward 0", 8), (group(2), "uniform reward 10", 8)]
    assert [drop.group for drop in second.drops] == [group(5)]
    counts = store.counts()
    assert (counts.issued, counts.dropped, counts.trained) == (7, 3, 4)
    assert (counts.outstanding_tickets, counts.ready_groups, store.retained_bytes()) == (0, 0, 0)
    assert [row["dropped_groups"] for row in read_metrics(folder / "metrics.jsonl")] == [2, 1]


def test_the_success_of_a_step_counts_the_episodes_that_it_replaced(whole):
    """Step 1 trains on group 1, won once, and on 3, lost. It has replaced 0, lost, and 2, won four times: 5 of 16
    episodes of two turns, each worth 10 and a score of .5. Step 2: 4 and 6, won once, and 5, lost: 2 of 12."""
    first, second = read_metrics(whole[0] / "metrics.jsonl")
    shown = ("episodes", "env_steps", "success_rate", "episode_return", "task_score", "episode_length")
    assert [first[key] for key in shown] == [16, 32, 5 / 16, 50 / 16, 2.5 / 16, 2]
    assert [second[key] for key in shown] == pytest.approx([12, 24, 2 / 12, 20 / 12, 1 / 12, 2])
    files = {row["step"]: [pq.read_table(path) for path in (whole[0] / "episodes").glob("*.parquet")
                           if path.name in names] for row, names in (
        (first, {"step-00000001.parquet", *(f"step-00000000-dropped-train-0000000{n}.parquet" for n in (0, 2))}),
        (second, {"step-00000002.parquet", "step-00000001-dropped-train-00000005.parquet"}))}
    assert [row["tokens_sampled"] for row in (first, second)] == [
        sum(len(tokens) for table in files[step] for tokens in table["tokens"].to_pylist()) for step in (1, 2)]


def test_dropped_groups_are_in_the_archive(whole):
    rows = {path.name: pq.read_table(path).to_pylist() for path in (whole[0] / "episodes").glob("*dropped*")}
    assert set(rows) == {f"step-{step:08d}-dropped-train-{n:08d}.parquet" for step, n in ((0, 0), (0, 2), (1, 5))}
    assert {(row["outcome"], row["reason"]) for row in rows["step-00000000-dropped-train-00000002.parquet"]} == {
        ("dropped", "uniform reward 10")}


@pytest.mark.parametrize("crash_when", [
    lambda counts: counts.dropped == 1,
    lambda counts: counts.dropped == 2,
    lambda counts: counts.dropped == 3,
], ids=["after the first drop", "with its rounds used up", "in step 2"])
def test_a_crash_amid_replacing_changes_nothing(whole, redis_url, model_path, rank_group, tmp_path, request,
                                                crash_when):
    store = Store(redis_url, request.node.name.translate(str.maketrans(" []", "---")))
    with pytest.raises(Crash):
        life(store, tmp_path, model_path, rank_group, crash_when=crash_when)
    learner = life(store, tmp_path, model_path, rank_group)
    assert [m.groups for m in store.steps.manifests(0)] == [m.groups for m in whole[1].steps.manifests(0)]
    assert [[d.group for d in m.drops] for m in store.steps.manifests(0)] == [
        [d.group for d in m.drops] for m in whole[1].steps.manifests(0)]
    expected = weights(whole[2])
    assert all((tensor == expected[name]).all() for name, tensor in weights(learner).items())


def test_without_rounds_uniform_groups_are_trained_on(redis_url, model_path, rank_group, tmp_path):
    store = Store(redis_url, "as-they-come")
    life(store, tmp_path, model_path, rank_group, rounds=0)
    assert [m.groups for m in store.steps.manifests(0)] == [[group(0), group(1)], [group(2), group(3)]]


def test_groups_that_are_dropped_at_once_are_in_one_file(redis_url, model_path, rank_group, tmp_path, monkeypatch):
    """Step 1 drops 0 and 1 and takes 2 and 3. Its first learner dies when it has written the file and the store still
    has the groups: the next one writes the same file."""
    store, uniform, forget = Store(redis_url, "at-once"), {0: 0.0, 1: 10.0}, Store.drop

    def dies(self, *args):
        monkeypatch.setattr(Store, "drop", forget)
        raise Crash

    monkeypatch.setattr(Store, "drop", dies)
    for _ in range(2):
        with pytest.raises(Crash):
            life(store, tmp_path, model_path, rank_group, uniform=uniform, crash_when=lambda counts: counts.dropped)
        (file,) = (tmp_path / "episodes").glob("*dropped*")
        assert file.name == "step-00000000-dropped-train-00000000.parquet"
        assert [(row["group"], row["k"], row["reason"]) for row in pq.read_table(file).to_pylist()] == [
            (group(number), k, f"uniform reward {uniform[number]:g}")
            for number in (0, 1) for k in range(4) for _turn in range(2)]
    life(store, tmp_path, model_path, rank_group, uniform=uniform)
    first, _ = store.steps.manifests(0)
    assert (first.groups, [drop.group for drop in first.drops]) == ([group(2), group(3)], [group(0), group(1)])
