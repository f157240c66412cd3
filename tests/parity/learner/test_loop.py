"""The training loop over a real Redis: what it leaves behind, and that a crash at any phase changes no bit."""

import argparse
import json

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from learner_tiny import make_config, make_step, weights
from transformers import AutoModelForCausalLM

from deploy.commands import export as command_export
from learner.checkpoint import Checkpoints
from learner.loop import TrainingLoop
from learner.trainer import Learner
from services.errors import UserError
from services.records import Episode, Manifest, Ticket
from services.seeds import seed_for
from services.store.archive import EpisodeArchive
from services.store.store import Store
from services.telemetry.logs import configure_logs
from services.telemetry.metrics_file import METRIC_KEYS, check_metrics, read_metrics, read_rows

STEPS = 4


def episode(claim):
    """What a worker would have played: a function of the ticket alone."""
    rng = np.random.default_rng(seed_for(claim.ticket.id))
    won = bool(rng.random() < 0.5)
    steps = [make_step(rng, observation=str(rng.integers(3))) for _ in range(rng.integers(1, 5))]
    steps[-1] = msgspec.structs.replace(steps[-1], reward=10.0 * won)
    return Episode(ticket=claim.ticket, steps=steps, won=won, end="won" if won else "turns", worker=claim.worker,
                   attempt=claim.attempt, seconds=0.1, engine="e")


def play(store, numbers):
    """Issues and finishes groups of four; policy step 0 samples all, so staleness must allow for it."""
    lease = store.acquire("controller", "c")
    for number in numbers:
        group = f"train/{number:08d}"
        tickets = [Ticket(group=group, k=k, size=4, task=f"t/{number}", seed=k, kind="train", temperature=1.0,
                          max_steps=5) for k in range(4)]
        assert store.issue(lease, tickets, capacity=100)
    while claims := store.claim("w", 100):
        for claim in claims:
            assert store.commit_episode(claim, episode(claim)) == "accepted"


class Crash(Exception):
    pass


def run(store, folder, model_path, gang, *, crash_at=None, **sections):
    """One life of a learner: up to the end, or to the publication of `crash_at`."""
    config = make_config(staleness=STEPS).model_copy(update={"runs_dir": folder})
    config = type(config).model_validate(
        config.model_dump() | {"steps": STEPS, "checkpoint": {"every": 2, "keep": 1}} | sections)
    published, replaced = [], []

    def publish(version, packed):
        if version.step == crash_at:
            raise Crash
        published.append((version, packed))

    learner = Learner(config, model_path, gang)
    with EpisodeArchive(folder / "episodes") as archive:
        TrainingLoop(
            config=config, learner=learner, store=store, lease=store.acquire("learner", "l"), archive=archive,
            checkpoints=Checkpoints(folder / "checkpoints", 1), metrics=folder / "metrics.jsonl", publish=publish,
            before_publish=replaced.append,
        ).run()
    return learner, published, replaced


@pytest.fixture(scope="module")
def uninterrupted(redis_url, model_path, gang, tmp_path_factory):
    folder, store = tmp_path_factory.mktemp("whole"), Store(redis_url, "whole")
    play(store, range(2 * STEPS))
    return folder, store, *run(store, folder, model_path, gang)


def test_what_a_run_leaves(uninterrupted):
    folder, store, _, published, replaced = uninterrupted
    assert [version.step for version, _ in published] == list(range(STEPS + 1))
    assert replaced == [version for version, _ in published[:-1]]
    assert len({version.digest for version, _ in published}) == STEPS + 1
    pointer, path = store.version()
    assert pointer == published[-1][0]
    assert path == str(folder / "checkpoints" / "step-00000004" / "hf")
    rows = read_metrics(folder / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    check_metrics({key: value for key, value in rows[0].items() if key != "format"})
    assert set(METRIC_KEYS) < set(rows[0])
    assert rows[3]["staleness_max"] == 3
    assert Checkpoints(folder / "checkpoints", 1).steps() == [4]
    assert store.counts().retired_step == STEPS
    assert store.retained_bytes() == 0
    table = pq.read_table(folder / "episodes" / "step-00000001.parquet").to_pylist()
    assert {row["group"] for row in table} == {"train/00000000", "train/00000001"}
    assert all(row["advantage"] is not None and len(row["state_key"]) == 32 for row in table)
    assert all(row["raw_advantage"] is not None and row["prompt_tokens"] == len(row["prompt_ids"]) for row in table)
    differences = [abs(mine - theirs) for row in table
                   for mine, theirs in zip(row["learner_logprobs"], row["logprobs"], strict=True)]
    assert np.mean(differences) == pytest.approx(rows[0]["logprob_difference_mean"], rel=1e-5)
    assert sum(row["env_steps"] for row in rows[:1]) == len(table)


@pytest.mark.parametrize("crash_at", [0, 1, 3])
def test_a_crash_changes_no_bit(uninterrupted, redis_url, model_path, gang, tmp_path, crash_at):
    """After the manifest and the update, before publication; step 3 lies beyond the checkpoint of step 2."""
    store = Store(redis_url, f"crash-{crash_at}")
    play(store, range(2 * STEPS))
    with pytest.raises(Crash):
        run(store, tmp_path, model_path, gang, crash_at=crash_at)
    learner, published, _ = run(store, tmp_path, model_path, gang)
    assert {version.incarnation for version, _ in published} == {2}
    whole = weights(uninterrupted[2])
    assert all(torch.equal(tensor, whole[name]) for name, tensor in weights(learner).items())
    assert published[-1][0].digest == uninterrupted[3][-1][0].digest
    assert [row["step"] for row in read_rows(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4]


def test_a_crash_right_after_a_checkpoint_loses_no_line_of_metrics(redis_url, model_path, gang, tmp_path, monkeypatch):
    """Nothing replays a step that has its checkpoint."""
    store = Store(redis_url, "lines")
    play(store, range(2 * STEPS))
    with monkeypatch.context() as patch:
        patch.setattr(store, "retire", lambda *_: (_ for _ in ()).throw(Crash))
        with pytest.raises(Crash):
            run(store, tmp_path, model_path, gang)
    assert Checkpoints(tmp_path / "checkpoints", 1).steps() == [2]
    run(store, tmp_path, model_path, gang)
    assert [row["step"] for row in read_rows(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4]


def test_an_evaluated_step_has_its_checkpoint_before_the_next_is_published(redis_url, model_path, gang, tmp_path):
    """Evaluated: 0, 3 and the last. The crash comes as step 4 would be published."""
    store, sections = Store(redis_url, "evaluated"), {"checkpoint": {"every": 100, "keep": 1}, "eval": {"every": 3}}
    play(store, range(2 * STEPS))
    with pytest.raises(Crash):
        run(store, tmp_path, model_path, gang, crash_at=4, **sections)
    checkpoints = Checkpoints(tmp_path / "checkpoints", 1)
    assert checkpoints.steps() == [3]
    checkpoints.record_score(3, 0.5)
    run(store, tmp_path, model_path, gang, **sections)
    assert checkpoints.steps() == [3, 4]


def test_the_runs_log_tells_what_the_learner_did(redis_url, model_path, gang, tmp_path):
    """A first life up to the publication of step 3, and a second that replays it."""
    store = Store(redis_url, "told")
    play(store, range(2 * STEPS))
    configure_logs(tmp_path, process="learner-0", show=None)
    with pytest.raises(Crash):
        run(store, tmp_path, model_path, gang, crash_at=3)
    run(store, tmp_path, model_path, gang)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    told = {name: [line for line in lines if line["event"] == name] for name in (line["event"] for line in lines)}
    assert [line["step"] for line in told["no checkpoint"] + told["restored"]] == [0, 2]
    assert [(line["step"], line["replayed"]) for line in told["step trained"]] == [
        (1, False), (2, False), (3, False), (3, True), (4, False)]
    assert [line["step"] for line in told["checkpoint written"]] == [2, 4]
    assert [line["version"] for line in told["published"]] == ["1.0", "1.1", "1.2", "2.2", "2.3", "2.4"]
    assert all(line["bytes"] > 0 for line in told["episodes retired"])


def test_an_emptied_redis_goes_on_from_the_checkpoint(redis_url, model_path, gang, tmp_path):
    """The checkpoint of step 2 wins: groups from 4 on are issued again, the incarnation goes on growing."""
    store = Store(redis_url, "lost")
    play(store, range(2 * STEPS))
    with pytest.raises(Crash):
        run(store, tmp_path, model_path, gang, crash_at=3)
    empty = Store(redis_url, "lost-emptied")
    with pytest.raises(Crash):
        run(empty, tmp_path, model_path, gang, crash_at=2)
    assert empty.counts().next_group == 4
    play(empty, range(4, 2 * STEPS))
    _, published, _ = run(empty, tmp_path, model_path, gang)
    assert [version.step for version, _ in published] == [2, 3, 4]
    assert published[0][0].incarnation > 1


def test_over_age_groups_are_dropped_with_their_reason(redis_url, model_path, gang, tmp_path):
    """Episodes of policy step 0 at staleness 0: usable for step 1, too old for step 2. They are in the archive."""
    store = Store(redis_url, "old")
    play(store, range(4))
    learner = Learner(make_config(), model_path, gang)
    with EpisodeArchive(tmp_path / "episodes") as archive:
        loop = TrainingLoop(
            config=make_config(), learner=learner, store=store, lease=store.acquire("learner", "l"), archive=archive,
            checkpoints=Checkpoints(tmp_path, 1), metrics=tmp_path / "m", publish=print, before_publish=print)
        assert loop._young_enough(["train/00000000"]) == ["train/00000000"]
        learner.step = 1
        assert loop._young_enough(["train/00000000"]) == []
    assert store.counts().dropped == 1
    (file,) = (tmp_path / "episodes").iterdir()
    assert file.name == "step-00000000-dropped-train-00000000.parquet"
    assert {(row["task"], row["outcome"], row["reason"]) for row in pq.read_table(file).to_pylist()} == {
        ("t/0", "dropped", "over-age: sampled before step 1")}


def test_an_over_age_group_without_any_episode_still_says_its_task(redis_url, model_path, gang, tmp_path):
    store = Store(redis_url, "unfinished")
    lease = store.acquire("controller", "c")
    ticket = Ticket(group="train/00000000", k=0, size=1, task="t/7", seed=0, kind="train", temperature=1.0, max_steps=5)
    assert store.issue(lease, [ticket], capacity=1)
    with EpisodeArchive(tmp_path / "episodes") as archive:
        loop = TrainingLoop(
            config=make_config(), learner=Learner(make_config(), model_path, gang), store=store,
            lease=store.acquire("learner", "l"), archive=archive, checkpoints=Checkpoints(tmp_path, 1),
            metrics=tmp_path / "m", publish=print, before_publish=print)
        loop._drop("train/00000000", "over-age")
    play(store, [1, 2])
    manifest = store.begin_step(
        loop.lease, Manifest(step=1, incarnation=1, groups=["train/00000001", "train/00000002"], drops=[]))
    assert [(drop.group, drop.task, drop.steps) for drop in manifest.drops] == [("train/00000000", "t/7", 0)]


def test_export_gives_the_learners_weights(uninterrupted, tmp_path, capsys):
    """gagpo export of the last checkpoint, read by transformers as any folder is."""
    folder, _, learner, _, _ = uninterrupted
    parser = argparse.ArgumentParser()
    command_export.add_parser(parser.add_subparsers())

    def export(*arguments):
        args = parser.parse_args(["export", *map(str, arguments)])
        return args.run(args)

    assert export(folder, tmp_path / "out", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"step": 4, "path": str(tmp_path / "out")}
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    assert all(torch.equal(tensor, found[name]) for name, tensor in weights(learner).items())
    for arguments, match in [((folder, tmp_path / "out"), "exists"), ((tmp_path, tmp_path / "x"), "no checkpoints"),
                             ((folder, tmp_path / "x", "--which", "2"), "one of the steps kept: 4"),
                             ((folder, tmp_path / "x", "--which", "best"), "no checkpoint 'best'")]:
        with pytest.raises(UserError, match=match):
            export(*arguments)
