"""The groups that a learner step trains on, over a real Redis."""

import time
from types import SimpleNamespace

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
import structlog
from learner_tiny import make_config, make_step
from loop_tiny import episode, issue, play

from learner import collect
from learner.collect import NO_WORKERS, WAITS, GroupCollector
from services.errors import DeadlineExceeded
from services.records import Manifest
from services.store.archive import EpisodeArchive
from services.store.bodies import Bodies
from services.store.connection import Connection
from services.store.store import Store
from services.telemetry.heartbeat import NO_SERVERS


@pytest.fixture
def collector(redis_url, tmp_path, request):
    """Provides `collector(staleness=0, ...)` of a run with its own keys."""
    store = Store(redis_url, request.node.name.translate(str.maketrans(" []", "---")))
    with EpisodeArchive(tmp_path / "episodes") as archive:
        yield lambda **learner: GroupCollector(section=make_config(**learner).learner, store=store, archive=archive,
                                               lease=store.leases.acquire("learner", "l"))


def group(number):
    return f"train/{number:08d}"


def finish(store, numbers):
    """Plays the issued groups with these numbers. The worker keeps the other tickets."""
    for claim in store.claim("w", 100, min_idle_s=0.0):
        if claim.ticket.group in map(group, numbers):
            assert store.commit_episode(claim, episode(claim)) == "accepted"


def test_over_age_groups_are_dropped_with_their_reason(collector, tmp_path):
    """Episodes of policy step 0 at staleness 0: usable for step 1, too old for step 2. They are in the archive."""
    made = collector()
    play(made.store, range(4))
    assert made.collect(1) == [group(0), group(1)]
    assert made._young_enough([group(0)], 2) == []
    assert made.store.counts().dropped == 1
    (file,) = (tmp_path / "episodes").iterdir()
    assert file.name == "step-00000000-dropped-train-00000000.parquet"
    assert {(row["task"], row["outcome"], row["reason"]) for row in pq.read_table(file).to_pylist()} == {
        ("t/0", "dropped", "over-age: sampled before step 1")}


def test_a_group_whose_episode_is_lost_is_played_again_before_a_manifest_names_it(collector, tmp_path):
    """Also at the first step, at which no group is too old."""
    made = collector()
    made.store.bodies = Bodies(tmp_path.as_uri(), "lost", 60.0)
    play(made.store, [0, 1])
    next((tmp_path / "lost").glob("train-00000000#2.*")).unlink()
    assert made._young_enough([group(0), group(1)], 1) == [group(1)]
    finish(made.store, [0])
    assert made.collect(1) == [group(0), group(1)]


@pytest.mark.parametrize("lost", ["train-00000000#2.*", "train-00000000#*"])
def test_a_group_whose_episodes_are_lost_before_their_rewards_are_compared_is_played_again(collector, tmp_path, lost):
    made = collector(dynamic_sampling=1)
    made.store.bodies = Bodies(tmp_path.as_uri(), "lost", 60.0)
    play(made.store, [0, 1], play_one=lambda claim: earns(float(claim.ticket.k))(claim))
    for body in (tmp_path / "lost").glob(lost):
        body.unlink()
    assert made._not_uniform([group(0), group(1)]) == [group(1)]
    assert made.store.outstanding_groups() == [group(0)]


def earns(*rewards):
    """Returns how to play an episode that earns these rewards in turn."""
    def play_one(claim):
        rng = np.random.default_rng(claim.ticket.k)
        return msgspec.structs.replace(episode(claim), steps=[make_step(rng, reward=reward) for reward in rewards])
    return play_one


def test_a_group_whose_rewards_differ_by_rounding_alone_is_replaced(collector):
    """All episodes of group 0 earn 0.6, two of them in another order: their sum is 0.6000000000000001. Those of group 1
    earn 0.6 and 0.7."""
    made = collector(dynamic_sampling=1)

    def play_one(claim):
        last = 0.4 if claim.ticket.group == group(1) and claim.ticket.k else 0.3
        return earns(*([0.1, 0.2, last] if claim.ticket.k % 2 else [last, 0.2, 0.1]))(claim)

    play(made.store, [0, 1], play_one=play_one)
    assert made._not_uniform([group(0), group(1)]) == [group(1)]
    assert [drop.reason for drop in made.store.drops()] == ["uniform reward 0.6"]


def test_a_dropped_group_without_any_episode_still_says_its_task(collector):
    made = collector()
    issue(made.store, [0])
    made.drop({group(0): "over-age"})
    play(made.store, [1, 2])
    manifest = made.store.steps.begin(made.lease, Manifest(step=1, incarnation=1, groups=[group(1), group(2)],
                                                           drops=[]))
    assert [(drop.group, drop.task, drop.steps) for drop in manifest.drops] == [(group(0), "t/0", 0)]


def test_a_straggler_that_finishes_while_the_learner_looks_is_not_overtaken(collector, monkeypatch):
    """Groups 1, 2 and 3 are ready, 0 finishes right after the first read of the store; step 1 takes 0 and 1."""
    made = collector(staleness=1)
    issue(made.store, range(4))
    finish(made.store, [1, 2, 3])
    read = Connection.read

    def read_then_finish(connection, *commands):
        replies = read(connection, *commands)
        monkeypatch.setattr(Connection, "read", read)
        finish(made.store, [0])
        return replies

    monkeypatch.setattr(Connection, "read", read_then_finish)
    assert made.collect(1) == [group(0), group(1)]
    assert made.store.counts().dropped == 0


def test_a_group_that_hangs_is_dropped_at_staleness_0(collector):
    """Nothing is finished after group 1: group 0 is dropped, and group 2, issued in its place, is taken."""
    made = collector(overdue_s=0.2)
    issue(made.store, range(2))
    finish(made.store, [1])
    looks = []

    def replace_what_was_dropped():
        looks.append(made.store.counts())
        if looks[-1].dropped and looks[-1].issued == 2:
            play(made.store, [2])

    made.check = replace_what_was_dropped
    assert made.collect(1) == [group(1), group(2)]
    (drop,) = made.store.drops()
    assert (drop.group, drop.reason) == (group(0), "over-age: unfinished 0.2 s after the last group was finished")


def test_no_group_is_dropped_while_nothing_at_all_is_finished(collector):
    """The samplers or the environment are down, so no single group hangs. The wait has its own limit, and names its
    key."""
    made = collector(overdue_s=0.1, wait_s=0.5)
    issue(made.store, range(2))
    with pytest.raises(DeadlineExceeded, match=r"0 of 2 groups .* in 0.5 s \(learner.wait_s\)"):
        made.collect(1)
    assert made.store.counts().dropped == 0


@pytest.mark.parametrize("during", [NO_SERVERS, None])
@pytest.mark.parametrize("seconds", [40, 90, 1500])
def test_no_group_hangs_during_an_outage_and_after_it_the_wait_is_counted_from_zero(
        collector, monkeypatch, during, seconds):
    """The environment servers, or all workers (None), are away for a while, shorter or longer than the wait."""
    made, now = collector(overdue_s=60.0, wait_s=3600.0), [0.0]
    monkeypatch.setattr(collect, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=lambda _: None))
    issue(made.store, range(2))
    finish(made.store, [1])

    def an_outage():
        now[0] += 1.0
        away = 10 < now[0] < 10 + seconds
        silent = away and during is None
        made.store.state.beat("rollout-0", {"role": "rollout", "doing": during if away else "playing"},
                              ttl_s=0.001 if silent else 10.0)
        time.sleep(0.002 * silent)
        assert made.store.counts().dropped == 0
        if now[0] > 10 + seconds + 50:
            finish(made.store, [0])

    made.check = an_outage
    assert made.collect(1) == [group(0), group(1)]
    assert made.store.counts().dropped == 0


def test_no_group_is_dropped_while_no_worker_is_heard_and_that_is_told(collector, monkeypatch):
    """All workers are gone: their groups do not hang. Once one is heard, the learner waits as before."""
    monkeypatch.setattr(collect, "SILENT_S", 0.1)
    monkeypatch.setattr(collect, "LOOK_S", 0.05)
    made = collector(overdue_s=0.3, wait_s=1.0)
    issue(made.store, range(2))
    finish(made.store, [1])
    doing = []
    made.check = lambda: doing.append(made.heartbeat.beat()["doing"])
    with (structlog.testing.capture_logs() as told,
          pytest.raises(DeadlineExceeded, match=r"\(learner.wait_s\); no rollout worker has been heard for \d+ s")):
        made.collect(1)
    assert made.store.counts().dropped == 0
    assert doing[-1] == NO_WORKERS
    assert [line["log_level"] for line in told] == ["warning"]

    def a_worker_comes():
        doing.append(made.heartbeat.beat()["doing"])
        made.store.state.beat("rollout-0", {"role": "rollout", "doing": "playing"})
        if doing[-1] == WAITS:
            finish(made.store, [0])

    made.check = a_worker_comes
    assert made.collect(1) == [group(0), group(1)]
    assert made.store.counts().dropped == 0


def test_an_earlier_incarnation_of_the_same_step_is_as_good(collector):
    """Replays reproduce the weights of each step, so a version's step decides its age, and not its incarnation."""
    made = collector()

    def of_an_earlier_life(claim):
        played = episode(claim)
        spans = [[msgspec.structs.replace(span, version=msgspec.structs.replace(span.version, incarnation=7, step=1))
                  for span in step.spans] for step in played.steps]
        steps = [msgspec.structs.replace(step, spans=own) for step, own in zip(played.steps, spans, strict=True)]
        return msgspec.structs.replace(played, steps=steps)

    play(made.store, range(2), play_one=of_an_earlier_life)
    assert made._young_enough([group(0)], 2) == [group(0)]
