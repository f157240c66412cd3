"""Cases outside the model test: expiry of leases, order of calls, run state, misuse, and the cost of heartbeats."""

import threading
import time
import uuid

import msgspec
import numpy as np
import pytest
from store_episodes import play_all, played, tickets

from services.controller.tickets import typed
from services.errors import LeaseLost, StoreFault
from services.records import Drop, Manifest, PlayedTurn, Version
from services.store.connection import NotReady
from services.store.gpu_lease import WANTED, GpuLease
from services.store.lease import LeaseHeld
from services.store.store import Store


def test_a_lease_belongs_to_one_holder_until_it_expires(store):
    first = store.leases.acquire("learner", "a", ttl_s=600)
    with pytest.raises(LeaseHeld, match=r"held by a for another [56]\d\d\.\d s"):
        store.leases.acquire("learner", "b")
    store.leases.renew(first)
    store.leases.acquire("controller", "b")  # roles are apart
    short = store.leases.acquire("learner", "a", ttl_s=0.05)
    time.sleep(0.06)
    second = store.leases.acquire("learner", "b")
    assert (first.epoch, short.epoch, second.epoch) == (1, 2, 3)
    with pytest.raises(LeaseLost):
        store.leases.renew(short)


def test_the_same_holder_takes_its_lease_back_at_once_and_fences_its_former_self(store):
    first = store.leases.acquire("learner", "a")
    second = store.leases.acquire("learner", "a")
    assert second.epoch == first.epoch + 1
    with pytest.raises(LeaseLost):
        store.state.incarnation(first)
    assert store.state.incarnation(second) == 1


def test_a_released_lease_is_free_and_no_longer_writes(store):
    first = store.leases.acquire("controller", "a")
    store.leases.release(first)
    with pytest.raises(LeaseLost):
        store.issue(first, tickets(0), capacity=9)
    assert store.leases.acquire("controller", "b").epoch == 2


def test_an_episode_comes_back_as_it_went_in(store, controller):
    store.issue(controller, tickets(0, size=1), capacity=1)
    (claim,) = store.claim("w", 5)
    store.commit_episode(claim, played(claim))
    (back,) = store.episodes("train/00000000")
    assert back.ticket == claim.ticket
    np.testing.assert_array_equal(back.steps[0].logprobs, np.array([-1.0, -2.0], np.float32))


def test_groups_of_any_size_are_read_whole_and_in_order(store, controller):
    store.issue(controller, tickets(0, size=130), capacity=1)
    claims = store.claim("w", 200)
    for claim in reversed(claims):
        store.commit_episode(claim, played(claim))
    assert [e.ticket.k for e in store.episodes("train/00000000")] == list(range(130))


def test_ready_groups_come_in_order_of_issue_not_of_finish(store, controller):
    for number in range(3):
        store.issue(controller, tickets(number, size=1), capacity=9)
    store.issue(controller, tickets(0, size=1, kind="eval"), capacity=0)
    for claim in reversed(store.claim("w", 9)):
        store.commit_episode(claim, played(claim))
    assert store.ready("train") == ["train/00000000", "train/00000001", "train/00000002"]
    assert store.ready("eval") == ["eval/00000000"]
    assert (store.counts().ready_groups, store.counts().ready_eval) == (3, 1)


def test_group_numbers_are_issued_without_gaps(store, controller):
    assert store.issue(controller, tickets(5), capacity=9)
    with pytest.raises(StoreFault, match="out of order"):
        store.issue(controller, tickets(7), capacity=9)
    assert store.counts().next_group == 6


def test_part_of_a_group_is_not_issued(store, controller):
    for wrong in (tickets(0)[:1], tickets(0)[::-1], [tickets(0)[0], tickets(1)[1]]):
        with pytest.raises(ValueError, match=r"members 0\.\.1 of one group"):
            store.issue(controller, wrong, capacity=9)
    assert store.counts().issued == 0


def test_training_tickets_go_only_to_weights_that_may_sample_them_now(store, controller, learner):
    """A ticket that waits for newer weights stays in the stream, and no evaluation ticket waits behind it."""
    held = Version(incarnation=1, step=4)
    waiting = [msgspec.structs.replace(ticket, min_step=5) for ticket in tickets(0)]
    store.issue(controller, waiting, capacity=9)
    store.issue(controller, tickets(0, size=1, kind="eval"), capacity=9)
    assert [c.ticket.kind for c in store.claim("a", 9, own=held)] == ["eval"], "before any version is published"
    store.state.publish_version(learner, held, "")
    assert store.claim("a", 9, own=held) == []
    newer = msgspec.structs.replace(held, step=5)
    (first,) = store.claim("a", 1, own=newer)
    store.fail(first, "engine: it died")
    assert store.claim("b", 9, own=held) == [], "given back, it still waits for newer weights"
    assert store.claim("b", 9, own=msgspec.structs.replace(newer, incarnation=2)) == [], "weights of another life"
    assert store.claim("b", 9, own=newer, train=False) == []
    assert [c.attempt for c in store.claim("b", 9, own=newer)] == [2, 1]


def test_training_tickets_that_can_be_played_go_before_evaluation_tickets(store, controller):
    """Whichever was issued first. An evaluation fills the slots that training leaves free."""
    store.issue(controller, tickets(0, size=2, kind="eval"), capacity=9)
    store.issue(controller, tickets(0, size=2), capacity=9)
    assert [claim.ticket.kind for claim in store.claim("w", 3)] == ["train", "train", "eval"]


def test_a_claim_from_before_a_reset_cannot_answer_the_ticket_issued_anew(store, controller):
    store.issue(controller, tickets(0, size=1), capacity=9)
    (old,) = store.claim("w", 1)
    store.steps.reset_to(controller, 0, 0)
    store.issue(controller, tickets(0, size=1), capacity=9)
    assert store.commit_episode(old, played(old)) == "refused"
    (new,) = store.claim("w", 1)
    assert store.commit_episode(new, played(new)) == "accepted"


def test_three_deaths_of_a_worker_fail_none_of_its_tickets(store, controller):
    """Whatever killed it, at most one of its tickets was the cause."""
    store.issue(controller, tickets(0, size=4), capacity=9)
    for name in ("a", "b", "c"):
        assert len(store.claim(name, 4, min_idle_s=0.0)) == 4
    claims = store.claim("d", 4, min_idle_s=0.0)
    assert [claim.attempt for claim in claims] == [4] * 4
    assert store.failed_groups() == []
    assert store.fail(claims[0], "env: it failed") == "exhausted"
    assert [store.commit_episode(claim, played(claim)) for claim in claims[1:]] == ["accepted"] * 3


def test_ten_dead_workers_use_up_attempts_and_the_late_episode_of_one_still_counts(store, controller):
    store.issue(controller, tickets(0, size=1, task="alfworld/train/b"), capacity=9)
    claims = [store.claim(name, 1, min_idle_s=0.0)[0] for name in "abcdefghij"]
    assert [claim.attempt for claim in claims] == [*range(1, 11)]
    assert store.claim("k", 1, min_idle_s=0.0) == []
    assert store.failed_groups() == [Drop(group="train/00000000", task="alfworld/train/b", reason="worker died")]
    assert store.commit_episode(claims[0], played(claims[0])) == "accepted"
    assert store.failed_groups() == []
    assert store.ready("train") == ["train/00000000"]


@pytest.mark.parametrize("how", ["fails", "its worker starts again"])
def test_a_claim_that_was_given_back_can_neither_be_renewed_nor_keep_turns(server, how: str):
    """A worker may have asked for both before it knew. Others would wait 30 s for the ticket, or repeat its turns."""
    run = f"case{uuid.uuid4().hex}"
    store, restarted = (Store(server.url, run, timeout_s=5.0) for _ in range(2))
    store.issue(store.leases.acquire("controller", "c"), tickets(0, size=1), capacity=1)
    (claim,) = store.claim("w", 1)
    if how == "fails":
        store.fail(claim, "env: its server broke")
    else:
        restarted.claim("w", 0)
    turn = PlayedTurn(ids=np.arange(2, dtype=np.int32), logprobs=np.zeros(2, np.float32), spans=[], action="look",
                      digest="d")
    store.keep_turns("w", [(claim, 0, turn)])
    assert store.turns(claim.ticket.id) == []
    assert store.renew_claims("w", [claim]) == [claim]
    assert [(again.ticket.id, again.attempt) for again in store.claim("v", 1)] == [(claim.ticket.id, 2)]


def test_a_failed_ticket_rests_as_long_as_its_worker_said(server):
    """Neither another worker nor the next process of the same one may take it earlier, however long claims may idle."""
    run = f"case{uuid.uuid4().hex}"
    store, restarted = (Store(server.url, run, timeout_s=5.0) for _ in range(2))
    store.issue(store.leases.acquire("controller", "c"), tickets(0), capacity=1)
    first, second = store.claim("w", 2)
    began = time.monotonic()
    assert [store.fail(claim, "env: it answers with faults", pause_s=1.5) for claim in (first, first)] == ["retry"] * 2
    restarted.claim("w", 0)
    assert [claim.ticket for claim in restarted.claim("w", 9, min_idle_s=0.0)] == [second.ticket]
    assert store.renew_claims("w", [first]) == [first]
    assert time.monotonic() - began < 1.5, "the machine is too slow for this test"
    while not (claims := store.claim("v", 9)):
        time.sleep(0.05)
    assert time.monotonic() - began >= 1.5
    assert [(claim.ticket, claim.attempt) for claim in claims] == [(first.ticket, 2)]


def test_a_failed_group_is_listed_with_task_reason_and_the_steps_it_held(store, controller):
    store.issue(controller, typed(tickets(0), lambda _: "pick"), capacity=9)
    first, *_ = store.claim("a", 1)
    store.commit_episode(first, played(first))
    for outcome in ("retry", "retry", "exhausted"):
        (claim,) = store.claim("a", 1, min_idle_s=0.0)
        assert store.fail(claim, "engine: out of memory\nat step 3") == outcome
    (drop,) = store.failed_groups()
    assert drop.reason == "engine: out of memory\nat step 3"
    assert (drop.task, drop.task_type, drop.steps) == ("alfworld/train/a", "pick", 1)


def test_a_reason_with_half_of_a_surrogate_pair_is_kept(store, controller):
    """The error of an agent may repeat what json.loads made of the model's `\\ud83d`. It must not end the worker."""
    store.issue(controller, tickets(0, size=1), capacity=9)
    for _ in range(3):
        (claim,) = store.claim("a", 1, min_idle_s=0.0)
        store.fail(claim, "agent: there is no city \ud83d")
    (drop,) = store.failed_groups()
    assert drop.reason == "agent: there is no city ?"


def test_the_task_of_a_group_is_known_in_every_state_of_it(store, controller):
    assert store.task_of("train/00000000") == ""
    store.issue(controller, tickets(0, size=1, task="alfworld/train/b"), capacity=9)
    assert store.task_of("train/00000000") == "alfworld/train/b"
    store.issue(controller, tickets(1, size=1, task="alfworld/train/c"), capacity=9)
    for outcome in ("retry", "retry", "exhausted"):
        first, *_ = store.claim("a", 1, min_idle_s=0.0)
        assert store.fail(first, "engine") == outcome
    assert store.task_of("train/00000000") == "alfworld/train/b"
    (second,) = store.claim("a", 1)
    store.commit_episode(second, played(second))
    assert store.task_of("train/00000001") == "alfworld/train/c"


def test_a_learner_step_must_follow_the_step_before_it(store, controller, learner):
    store.issue(controller, tickets(0), capacity=9)
    play_all(store)
    with pytest.raises(StoreFault, match="does not follow"):
        store.steps.begin(learner, Manifest(step=2, incarnation=1, groups=["train/00000000"], drops=[]))
    with pytest.raises(NotReady):
        store.steps.begin(learner, Manifest(step=1, incarnation=1, groups=["train/00000000", "train/x"], drops=[]))
    assert store.ready("train") == ["train/00000000"]
    store.steps.begin(learner, Manifest(step=1, incarnation=1, groups=["train/00000000"], drops=[]))
    with pytest.raises(StoreFault, match="no manifest"):
        store.steps.retire(learner, 2)
    assert store.retained_bytes() > 0
    assert store.steps.retire(learner, 1) > 0
    assert store.steps.agrees_with(1)
    assert not store.steps.agrees_with(0)


def test_evaluation_groups_leave_only_once_they_are_ready(store, controller):
    store.issue(controller, tickets(0, kind="eval"), capacity=0)
    assert store.retire_eval(controller, ["eval/00000000"]) == 0
    play_all(store)
    assert store.retire_eval(controller, ["eval/00000000"]) > 0
    assert store.episodes("eval/00000000") == []


def test_many_workers_at_once_play_each_ticket_once(store, controller):
    for number in range(30):
        store.issue(controller, tickets(number), capacity=99)
    accepted = []

    def work(name):
        while claims := store.claim(name, 3, min_idle_s=30.0):
            accepted.extend(c.ticket.id for c in claims if store.commit_episode(c, played(c)) == "accepted")

    threads = [threading.Thread(target=work, args=(f"w{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120.0)
    assert sorted(accepted) == sorted(t.id for n in range(30) for t in tickets(n))
    assert store.counts().ready_groups == 30


def test_the_store_shows_the_version_the_incarnations_and_the_living_processes(store, learner):
    assert store.state.version() is None
    store.state.publish_version(learner, Version(incarnation=1, step=3, digest="d"), "runs/x/export")
    assert store.state.version() == (Version(incarnation=1, step=3, digest="d"), "runs/x/export")
    assert [store.state.incarnation(learner, above=above) for above in (0, 0, 7)] == [1, 2, 8]
    store.state.beat("w0", {"tokens": 3.5, "state": "busy"})
    store.state.beat("w1", {}, ttl_s=0.05)
    time.sleep(0.1)
    assert store.state.beats() == {"w0": {"tokens": 3.5, "state": "busy"}}


def test_any_worker_replaces_the_instructions_of_new_tickets(store):
    assert store.state.correction() == ""
    for correction in ("Do not go back.", "Nimm die Tür, dann öffne sie."):
        store.state.correct(correction)
    assert store.state.correction() == "Nimm die Tür, dann öffne sie."


def test_runs_in_one_redis_do_not_see_each_others_keys(server, store, controller):
    other = Store(server.url, f"case{uuid.uuid4().hex}", timeout_s=5.0)
    store.issue(controller, tickets(0), capacity=9)
    assert other.claim("w", 5) == []
    assert other.leases.acquire("controller", "someone").epoch == 1

SNAPSHOT = {"role": "rollout", "doing": "plays", "metrics": "m" * 6000}


@pytest.fixture
def workers(store) -> list[str]:
    names = [f"rollout-{number}" for number in range(50)]
    for name in names:
        store.state.beat(name, SNAPSHOT, ttl_s=600)
    return names


def sent_bytes(store) -> int:
    """Returns the bytes that Redis has sent since it started."""
    return store.connection.redis.info("stats")["total_net_output_bytes"]


def test_a_heartbeat_is_not_answered_with_those_of_all_others(store, workers):
    before = sent_bytes(store)
    for name in workers:
        store.state.beat(name, SNAPSHOT, ttl_s=600)
    assert sent_bytes(store) - before < 100_000
    assert sorted(store.state.beats()) == sorted(workers)


def test_a_worker_that_asks_whether_its_gpu_is_wanted_does_not_read_the_heartbeats_of_other_workers(store, workers):
    lease = GpuLease(store, workers[0])
    store.state.beat("learner-0", {"role": "learner", "doing": WANTED})
    before = sent_bytes(store)
    assert all(lease.wanted() for _ in range(10))
    assert sent_bytes(store) - before < 10 * 10_000


def test_a_gpu_is_wanted_only_while_the_learner_that_says_so_is_alive(store):
    lease = GpuLease(store, "rollout-0")
    assert not lease.wanted()
    store.state.beat("learner-0", {"role": "learner", "doing": "trains"})
    assert not lease.wanted()
    store.state.beat("learner-0", {"role": "learner", "doing": WANTED})
    assert lease.wanted()
    store.state.beat("learner-0", {"role": "learner", "doing": WANTED}, ttl_s=0)
    assert not lease.wanted()
