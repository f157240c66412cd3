"""A learner step that cannot be trained ends the run with its cause, and can be skipped."""

import math

import msgspec
import numpy as np
import pytest
from loop_tiny import STEPS, Crash, episode, play, run

from services.controller.skip import REASON, skip_step
from services.errors import UserError
from services.store.store import Store
from services.telemetry.metrics_file import read_rows

BROKEN = "train/00000002"


def with_a_broken_group(claim):
    """Plays groups. Group 2 has a step with more logprobs than tokens, which no sampler should ever return."""
    played = episode(claim)
    if claim.ticket.group != BROKEN:
        return played
    bad = msgspec.structs.replace(played.steps[0], logprobs=np.zeros(99, np.float32))
    return msgspec.structs.replace(played, steps=[bad, *played.steps[1:]])


@pytest.fixture
def store(redis_url, request):
    made = Store(redis_url, request.node.name)
    play(made, range(2 * STEPS), play_one=with_a_broken_group)
    return made


def lives(store, folder, model_path, rank_group, count):
    """Returns the errors that end `count` processes of the learner."""
    errors = []
    for _ in range(count):
        with pytest.raises((ValueError, UserError)) as caught:
            run(store, folder, model_path, rank_group)
        errors.append(caught.value)
    return errors


def test_the_last_attempt_names_step_groups_cause_and_remedies(store, model_path, rank_group, tmp_path):
    """Step 2 trains on groups 2 and 3. Step 1 is trained again in each process, which resets only its own count."""
    *first, last = lives(store, tmp_path, model_path, rank_group, 3)
    assert [type(error) for error in first] == [ValueError, ValueError]
    assert str(last).startswith(
        "learner step 2 failed 3 times on train/00000002, train/00000003 (ValueError: a step has ")
    assert "99 logprobs" in str(last)
    assert str(last).endswith("learner.token_budget, learner.ranks or learner.gpus, or leave these groups out by "
                              "--resume --skip-step 2")


def test_a_learner_that_dies_without_a_word_is_counted_too(store):
    lease = store.leases.acquire("learner", "l")
    assert [store.steps.attempt(lease, 2, life)[0] for life in (1, 1, 2, 3)] == [0, 0, 1, 2]


def test_a_resumed_run_has_its_attempts_anew(store):
    lease = store.leases.acquire("learner", "l")
    store.steps.attempt(lease, 2, 1)
    store.steps.attempt_failed(lease, 2, "no memory")
    assert store.steps.attempt(lease, 2, 2) == (1, "no memory")
    store.reissue(store.leases.acquire("controller", "c"))
    assert store.steps.attempt(lease, 2, 3) == (0, "")


def test_a_skipped_step_trains_on_other_groups_and_says_what_it_left_out(store, model_path, rank_group, tmp_path):
    lives(store, tmp_path, model_path, rank_group, 1)
    kept = {}
    controller = store.leases.acquire("controller", "c")
    skip_step(store, controller, 2, keep=kept.update)
    assert [(drop.group, drop.reason, len(episodes)) for drop, episodes in kept.items()] == [
        (BROKEN, REASON, 4), ("train/00000003", REASON, 4)]
    counts = store.counts()
    assert (counts.trained, counts.dropped, counts.last_step) == (2, 2, 1)
    play(store, [8, 9])
    run(store, tmp_path, model_path, rank_group)
    ledger = read_rows(tmp_path / "ledger.jsonl")
    assert [row["groups"][0] for row in ledger] == [f"train/{n:08d}" for n in (0, 4, 6, 8)]
    assert [(drop["group"], drop["reason"]) for drop in ledger[1]["drops"]] == [
        (BROKEN, REASON), ("train/00000003", REASON)]


def with_an_infinite_reward(claim):
    """Plays groups. In group 2, the first episode's first turn has a reward that a larger limit once let pass."""
    played = episode(claim)
    if claim.ticket.id != f"{BROKEN}#0":
        return played
    return msgspec.structs.replace(
        played, steps=[msgspec.structs.replace(played.steps[0], reward=math.inf), *played.steps[1:]])


def test_a_step_with_an_infinite_reward_is_named_and_can_be_skipped(redis_url, request, model_path, rank_group,
                                                                    tmp_path):
    """The drop of the skipped group had null for its rewards, and no later process of the learner could read it."""
    store = Store(redis_url, request.node.name)
    play(store, range(2 * STEPS), play_one=with_an_infinite_reward)
    (error,) = lives(store, tmp_path, model_path, rank_group, 1)
    assert isinstance(error, UserError)
    assert str(error) == (
        "learner step 2 cannot be trained: episode train/00000002#0 (t/2) has the reward inf at turn 0, and at most "
        "1e+06 in size is taken; leave the groups of this step out by --resume --skip-step 2")
    skip_step(store, store.leases.acquire("controller", "c"), 2, keep=lambda _: None)
    (written,) = store.connection.read(("LRANGE", "drops", 0, -1))
    assert [b"null" in drop for drop in written] == [False, False]
    play(store, [8, 9])
    run(store, tmp_path, model_path, rank_group)
    ledger = read_rows(tmp_path / "ledger.jsonl")
    assert [row["step"] for row in ledger] == [1, 2, 3, 4]
    assert [(drop["group"], drop["episodes"]) for drop in ledger[1]["drops"]] == [(BROKEN, 3), ("train/00000003", 4)]


def test_only_the_newest_manifest_can_be_skipped(store, model_path, rank_group, tmp_path):
    lives(store, tmp_path, model_path, rank_group, 1)
    lease = store.leases.acquire("controller", "c")
    for step in (1, 3):
        with pytest.raises(UserError, match=(
                f"step {step} cannot be skipped: only step 2, or one with a damaged manifest, can be; leave")):
            skip_step(store, lease, step, keep=print)


@pytest.mark.attack
@pytest.mark.parametrize("damaged", [
    (b"\xff\xfe", b"[]", b'{"step": 2', b" "),
    (b'{"step": 2, "incarnation": 1, "groups": [], "drops": []}',
     b'{"step": 9, "incarnation": 1, "groups": ["train/00000002"], "drops": []}',
     b'{"step": 2, "incarnation": 1, "groups": ["somebody"], "drops": []}',
     b'{"step": 2, "incarnation": 1, "groups": ["train/00000002"], "drops": [7]}')], ids=["no record", "wrong"])
def test_a_damaged_manifest_ends_the_run_at_once_and_can_be_skipped(store, model_path, rank_group, tmp_path, damaged):
    """The learner was started again for ever. The groups of the damaged manifest are those in no queue and in no other
    manifest."""
    lives(store, tmp_path, model_path, rank_group, 1)
    for manifest in damaged:
        store.connection.redis.hset(store.connection.key("manifests"), "2", manifest)
        with pytest.raises(UserError, match=r"the manifest of learner step 2 in Redis is damaged .*--resume --skip-st"):
            run(store, tmp_path, model_path, rank_group)
    skipped = skip_step(store, store.leases.acquire("controller", "c"), 2, keep=lambda _: None)
    assert [drop.group for drop in skipped] == [BROKEN, "train/00000003"]
    counts = store.counts()
    assert (counts.trained, counts.dropped, counts.last_step) == (2, 2, 1)
    play(store, [8, 9])
    run(store, tmp_path, model_path, rank_group)
    assert [row["groups"][0] for row in read_rows(tmp_path / "ledger.jsonl")] == [
        f"train/{n:08d}" for n in (0, 4, 6, 8)]


def test_a_damaged_manifest_below_the_newest_is_skipped_with_those_above_it(redis_url, model_path, rank_group,
                                                                            tmp_path):
    """Steps 1 to 3 are trained, and none has a checkpoint. Step 2 becomes groups 8 and 9."""
    store, sections = Store(redis_url, "below"), {"checkpoint": {"every": 100, "keep": 1}}
    play(store, range(2 * STEPS))
    with pytest.raises(Crash):
        run(store, tmp_path, model_path, rank_group, crash_at=3, **sections)
    store.connection.redis.hset(store.connection.key("manifests"), "2", b"{}")
    with pytest.raises(UserError, match="manifest of learner step 2"):
        run(store, tmp_path, model_path, rank_group, **sections)
    skipped = skip_step(store, store.leases.acquire("controller", "c"), 2, keep=lambda _: None)
    assert [drop.group for drop in skipped] == ["train/00000002", "train/00000003"]
    counts = store.counts()
    assert (counts.trained, counts.dropped, counts.last_step) == (2, 4, 1)
    play(store, range(8, 12))
    run(store, tmp_path, model_path, rank_group, **sections)
    assert [row["groups"][0] for row in read_rows(tmp_path / "ledger.jsonl")] == [
        f"train/{n:08d}" for n in (0, 6, 8, 10)]
