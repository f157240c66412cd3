"""A Redis that is away, silent, or not the one that was meant."""

import signal
import socket
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from repeating_store import RepeatingStore
from store_episodes import play_all, tickets
from waiting import wait_until_written

from services.config.redis import RedisSection
from services.errors import LeaseLost, StoreFault, UserError
from services.records import Drop
from services.store.store import Store


def test_redis_may_be_away_for_longer_than_a_lease_and_nothing_is_lost(server, store):
    patient = Store(server.url, f"case{uuid.uuid4().hex}", settings=RedisSection(outage_seconds=240))
    patient.issue(patient.leases.acquire("controller", "c", ttl_s=600.0), tickets(0), capacity=9)
    controller = patient.leases.acquire("controller", "c", ttl_s=1.0)
    wait_until_written(patient.connection.redis)
    server.stop(signal.SIGKILL)
    with ThreadPoolExecutor() as pool:
        renewed, played = pool.submit(patient.leases.renew, controller), pool.submit(play_all, patient)
        time.sleep(4.0)
        server.start()
        renewed.result(240.0)
        played.result(240.0)
    assert patient.ready("train") == ["train/00000000"]
    assert patient.drop(controller, Drop(group="train/00000000", task="t", reason="test", steps=0))


@pytest.mark.parametrize("before", [0, 1])
def test_a_claim_whose_reply_was_lost_is_answered_the_same_and_costs_no_attempt(server, before: int):
    """Also the first claim of a process, which gives back what an earlier process of its name held."""
    store = RepeatingStore(server.url, f"case{uuid.uuid4().hex}")
    store.issue(store.leases.acquire("controller", "c"), tickets(0, size=3), capacity=9)
    if before:
        store.claim("w", before)
    store.meanwhile = [lambda: None] * 3
    claims = store.claim("w", 3 - before)
    assert [(claim.ticket.k, claim.attempt) for claim in claims] == [(k, 1) for k in range(before, 3)]
    assert store.renew_claims("w", claims) == []
    assert store.claim("w", 3) == []


def test_a_repeated_claim_leaves_out_what_another_worker_holds_by_then(server):
    store, other = (kind(server.url, "case-other", timeout_s=5.0) for kind in (RepeatingStore, Store))
    store.issue(store.leases.acquire("controller", "c"), tickets(0, size=2), capacity=9)
    store.meanwhile = [lambda: other.claim("other", 1, min_idle_s=0.0)]
    assert [(claim.ticket.k, claim.attempt) for claim in store.claim("w", 2)] == [(1, 1)]
    assert store.claim("w", 2) == []


@pytest.mark.parametrize("meanwhile", ["nothing", "taken", "taken and released"])
def test_a_release_whose_reply_was_lost_is_answered_the_same(server, meanwhile: str):
    """The other side of a shared GPU takes it as soon as it is free, and may have given it back before the repeat."""
    run = f"case{uuid.uuid4().hex}"
    store, other = (kind(server.url, run, timeout_s=5.0) for kind in (RepeatingStore, Store))

    def taken():
        lease = other.leases.acquire("gpu-0", "learner") if meanwhile != "nothing" else None
        if lease is not None and meanwhile == "taken and released":
            other.leases.release(lease)

    lease = store.leases.acquire("gpu-0", "worker")
    store.meanwhile = [taken]
    store.leases.release(lease)
    with pytest.raises(LeaseLost):
        other.leases.renew(lease)


def test_a_release_of_a_lease_that_has_passed_to_another_is_told(store):
    expired = store.leases.acquire("learner", "a", ttl_s=0.01)
    time.sleep(0.05)
    store.leases.acquire("learner", "b")
    with pytest.raises(LeaseLost, match="has passed to b"):
        store.leases.release(expired)


def test_a_redis_that_is_away_is_one_line_for_the_user_and_a_fault_for_the_rest(free_url):
    away = Store(free_url, "run", timeout_s=0.5)
    with pytest.raises(UserError, match=r"cannot be reached .*; start it or correct redis\.url"):
        away.connection.check()
    with pytest.raises(StoreFault, match=r"^claim: .*; Redis was unavailable for 3 s \(redis\.outage_seconds\)$"):
        away.claim("w", 1)


def test_check_passes_here_and_names_a_wrong_password(server):
    Store(server.url, "run").connection.check()
    wrong = server.url.replace("@", "x@")
    with pytest.raises(UserError, match="refused the password"):
        Store(wrong, "run").connection.check()


def test_a_silent_redis_costs_no_more_than_the_timeouts():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        deaf = Store(f"redis://127.0.0.1:{silent.getsockname()[1]}/0", "run", timeout_s=0.1)
        start = time.monotonic()
        with pytest.raises(StoreFault):
            deaf.counts()
        assert time.monotonic() - start < 60


@pytest.fixture
def free_url():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield f"redis://127.0.0.1:{probe.getsockname()[1]}/0"
