"""Bodies of episodes outside Redis: in a real folder and in a real S3 server. A real Redis holds references."""

import itertools
import threading

import numpy as np
import pytest
from object_store import BUCKET, object_store

from services.config.env import EnvSection
from services.config.redis import RedisSection
from services.controller.evaluation import Evaluation
from services.controller.tickets import EvalRequest
from services.errors import StoreFault
from services.records import Drop, Episode, Manifest, Step, Ticket, Version, VersionSpan
from services.store.store import Store

RUNS = itertools.count()
SIZE, TURNS, TOKENS = 2, 50, 200
LARGEST_REFERENCE = 500


@pytest.fixture(scope="module")
def s3():
    with object_store():
        yield f"{BUCKET}/bodies"


@pytest.fixture(params=["folder", "s3"])
def url(request, tmp_path):
    return tmp_path.as_uri() if request.param == "folder" else request.getfixturevalue("s3")


@pytest.fixture
def opened(server):
    """Provides `opened(url, ...)`: the store of one run, with its bodies at that URL."""
    run = f"bodies{next(RUNS)}"
    return lambda url, *, outage_s=60.0: Store(
        server.url, run, settings=RedisSection(bodies=url, outage_seconds=outage_s))


@pytest.fixture
def store(opened, url):
    return opened(url)


@pytest.fixture
def in_folder(opened, tmp_path):
    return opened(tmp_path.as_uri())


@pytest.fixture
def leases(opened):
    """The leases of controller and learner."""
    return opened(None).leases.acquire("controller", "c"), opened(None).leases.acquire("learner", "l")


def issue(store, lease, number, kind="train"):
    group = f"{kind}/{number:08d}"
    assert store.issue(lease, [
        Ticket(group=group, k=k, size=SIZE, task=f"t/{number}", seed=k, kind=kind, temperature=1.0, max_steps=TURNS)
        for k in range(SIZE)], capacity=100)
    return group


def played(claim):
    rng = np.random.default_rng(claim.ticket.seed)
    steps = [Step(
        observation="You see a desk.", prompt_ids=rng.integers(1000, size=TOKENS, dtype=np.int32),
        response_ids=np.arange(2, dtype=np.int32), logprobs=np.array([-1.0, -2.0], np.float32),
        spans=[VersionSpan(version=Version(incarnation=1, step=0), start=0, end=2)], action="look", valid=True,
        admissible=True, reward=0.5) for _ in range(TURNS)]
    return Episode(ticket=claim.ticket, steps=steps, won=False, end="lost", worker=claim.worker,
                   attempt=claim.attempt, seconds=1.0, engine="own")


def play_all(store):
    for claim in store.claim("w", 100):
        assert store.commit_episode(claim, played(claim)) == "accepted"


def files(store):
    """The folder of the run's bodies."""
    return store.bodies._folder


def names(store):
    return sorted(files(store).sizes())


def lose(store, group, how, *, k=0):
    (name,) = [name for name in names(store) if name.startswith(f"{group.replace('/', '-')}#{k}.")]
    files(store).delete([name]) if how == "missing" else files(store).write(name, b"damaged")


def step_of(store, lease, group):
    return store.steps.begin(lease, Manifest(step=1, incarnation=1, groups=[group], drops=[]))


def test_redis_holds_references_and_the_bodies_are_deleted_once_their_step_is_durable(store, leases):
    controller, learner = leases
    group, other = issue(store, controller, 0), issue(store, controller, 1)
    play_all(store)
    assert len(names(store)) == 2 * SIZE
    assert min(files(store).sizes().values()) > TURNS * TOKENS
    assert store.retained_bytes() < 2 * SIZE * LARGEST_REFERENCE
    first, second = store.episodes(group)
    assert [len(step.prompt_ids) for step in first.steps + second.steps] == [TOKENS] * 2 * TURNS
    assert store.task_of(group) == "t/0"
    (read,) = store.committed(step_of(store, learner, group))
    assert [episode.ticket.id for episode in read] == [f"{group}#0", f"{group}#1"]
    assert store.sweep() == 0
    store.steps.retire(learner, 1)
    assert store.sweep() == SIZE
    assert {name.partition("#")[0] for name in names(store)} == {other.replace("/", "-")}
    store.drop(controller, Drop(group=other, task="t/1", reason="test"))
    assert (store.sweep(), names(store)) == (SIZE, [])


@pytest.mark.parametrize("kind", ["train", "eval"])
@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_an_episode_whose_body_is_lost_is_played_again(store, leases, how, kind):
    """It is never an episode without a reward: its group is unfinished again, and gets the ticket's new episode."""
    group = issue(store, leases[0], 0, kind)
    play_all(store)
    before = names(store)
    lose(store, group, how)
    assert [episode.ticket.k for episode in store.episodes(group)] == [1]
    assert (store.ready(kind), store.outstanding_groups()) == ([], [group])
    assert [episode.ticket.k for episode in store.episodes(group)] == [1]  # asking twice puts it back once
    (claim,) = store.claim("w", 100)
    assert (claim.ticket.id, claim.attempt, store.turns(claim.ticket.id)) == (f"{group}#0", 1, [])
    assert store.commit_episode(claim, played(claim)) == "accepted"
    assert (store.ready(kind), len(store.episodes(group))) == ([group], SIZE)
    assert store.sweep() == (how == "damaged")
    assert len(set(names(store)) - set(before)) == 1


def test_an_episode_whose_body_is_lost_three_times_fails_with_the_reason(in_folder, leases):
    group = issue(in_folder, leases[0], 0)
    for _ in range(3):
        assert in_folder.failed_groups() == []
        play_all(in_folder)
        lose(in_folder, group, "missing")
        assert len(in_folder.episodes(group)) == SIZE - 1
        in_folder.sweep()
    (failed,) = in_folder.failed_groups()
    assert (failed.group, failed.task, in_folder.claim("w", 100)) == (group, "t/0", [])
    assert failed.reason.startswith("store: the body file://")
    assert failed.reason.endswith(" is not there")
    assert in_folder.drop(leases[0], failed)
    hashes = (("HGETALL", name) for name in ("lost", "failed", "outstanding"))
    assert in_folder.connection.read(*hashes) == [{}, {}, {}]


def test_an_evaluation_waits_for_the_episode_that_was_lost(in_folder, leases):
    request = EvalRequest(label="step-0", version=Version(incarnation=1, step=0), split="valid", tasks=("t/x", "t/y"),
                          temperature=0.5, seed=0, env=EnvSection(max_steps=TURNS), samples=SIZE)
    evaluation = Evaluation(in_folder, leases[0], request, lambda _: "")
    evaluation.issue()
    play_all(in_folder)
    lose(in_folder, request.group(0), "missing")
    assert (evaluation.collect(), evaluation.remaining) == (None, 1)
    play_all(in_folder)
    assert len(evaluation.collect()) == 2 * SIZE
    assert names(in_folder) == []


def test_a_body_that_a_manifest_needs_is_a_fault_and_its_step_can_be_skipped(in_folder, leases):
    """Its policy has gone on, so the episode cannot be played again. Nothing is trained on the rest of the group."""
    controller, learner = leases
    group = issue(in_folder, controller, 0)
    play_all(in_folder)
    manifest = step_of(in_folder, learner, group)
    lose(in_folder, group, "damaged")
    with pytest.raises(StoreFault, match=f"1 episodes of {group} can be read; the log names the lost ones"):
        in_folder.committed(manifest)
    assert in_folder.claim("w", 100) == []
    in_folder.steps.skip(learner, manifest, [Drop(group=group, task="t/0", reason="skipped")])
    assert (in_folder.sweep(), names(in_folder)) == (SIZE, [])


def test_a_sweep_keeps_what_may_still_be_committed(in_folder, leases):
    """Two workers play one ticket. A body is written before its commit, and the body of the refused one is deleted."""
    issue(in_folder, leases[0], 0)
    first, second = in_folder.claim("w", 100)
    again = in_folder.claim("late", 1, min_idle_s=0.0)[0]
    assert again.entry == first.entry
    in_folder.bodies.keep(first.ticket, first.entry, played(first))
    in_folder.bodies.keep(second.ticket, second.entry, played(second))
    assert in_folder.sweep() == 0
    assert in_folder.commit_episode(first, played(first)) == "accepted"
    assert in_folder.commit_episode(first, played(first)) == "accepted"  # its reply was lost
    assert in_folder.commit_episode(again, played(again)) == "refused"
    assert (in_folder.sweep(), len(names(in_folder))) == (1, SIZE)


def test_bodies_are_deleted_after_a_reset_and_after_an_erasure(in_folder, leases):
    issue(in_folder, leases[0], 0)
    play_all(in_folder)
    in_folder.steps.reset_to(leases[1], 0, 0)
    assert (in_folder.sweep(), names(in_folder)) == (SIZE, [])
    issue(in_folder, leases[0], 0)
    play_all(in_folder)
    in_folder.erase()
    assert names(in_folder) == []


def test_calls_wait_for_a_folder_that_is_away_and_no_episode_is_lost_by_it(opened, tmp_path, leases):
    shared, away = tmp_path / "shared", tmp_path / "away"
    shared.mkdir()
    store = opened(shared.as_uri(), outage_s=240.0)
    group = issue(store, leases[0], 0)
    play_all(store)
    shared.rename(away)
    back = threading.Timer(0.2, away.rename, [shared])
    back.start()
    assert len(store.episodes(group)) == SIZE
    back.join()
    shared.rename(away)
    with pytest.raises(StoreFault, match=r"bodies\d+ has failed for \d+ s \(.* is not there; redis.outage_seconds"):
        opened(shared.as_uri(), outage_s=1.0).episodes(group)
    assert store.ready("train") == [group]


@pytest.mark.usefixtures("s3")
def test_nothing_is_committed_whose_body_could_not_be_written(opened, leases, tmp_path):
    group = issue(opened(None), leases[0], 0)
    nowhere = opened("s3://nowhere/bodies", outage_s=1.0)
    (claim, _) = nowhere.claim("w", 100)
    with pytest.raises(StoreFault, match=r"s3://nowhere/.*NO_SUCH_BUCKET"):
        nowhere.commit_episode(claim, played(claim))
    store = opened(tmp_path.as_uri())
    assert store.episodes(group) == []
    assert store.commit_episode(claim, played(claim)) == "accepted"
    assert len(store.episodes(group)) == 1
