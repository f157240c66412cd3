"""The machine's clock is changed while a run goes on: nothing expires because of it, and nothing lives for ever."""

import shutil
import subprocess
import time
from pathlib import Path

import pytest
from store_episodes import tickets

from services.errors import LeaseLost
from services.store.lease import LeaseHeld
from services.store.redis_server import RedisServer, find_redis
from services.store.store import Store

SOURCE = Path(__file__).parents[2] / "toys/clock.c"
HOUR = 3600

pytestmark = pytest.mark.attack


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Provides a library that changes the clock of the process that loads it."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler (apt-get install gcc)")
    library = tmp_path_factory.mktemp("clock") / "clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, SOURCE], check=True, timeout=60)
    return library


@pytest.fixture
def set_clock(tmp_path):
    """Provides `set_clock(seconds)`, which sets the clock of Redis that far from the true time."""
    def set_to(seconds: float) -> None:
        (tmp_path / "offset").write_text(str(seconds))
        time.sleep(0.01)  # Valkey asks for the time of day once in a millisecond

    return set_to


@pytest.fixture
def store(library, tmp_path, monkeypatch):
    server = RedisServer(tmp_path / "redis", find_redis())
    with monkeypatch.context() as environment:
        environment.setenv("LD_PRELOAD", str(library))
        environment.setenv("CLOCK_OFFSET", str(tmp_path / "offset"))
        server.start()
    yield Store(server.url, "run", timeout_s=5.0)
    server.close()


def clock(store):
    seconds, _ = store.connection.redis.time()
    return seconds - time.time()


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_leases_claims_and_heartbeats_outlive_a_jump_of_the_clock(store, set_clock, jump):
    controller = store.leases.acquire("controller", "c", ttl_s=15.0)
    store.issue(controller, tickets(0), capacity=9)
    (claim,) = store.claim("living", 1)
    store.state.beat("living", {})
    set_clock(jump)
    assert clock(store) == pytest.approx(jump, abs=60)
    assert [other.ticket.k for other in store.claim("other", 9, min_idle_s=30.0)] == [1]
    with pytest.raises(LeaseHeld, match=r"another 1?\d\.\d s"):
        store.leases.acquire("controller", "other")
    assert store.state.beats() == {"living": {}}
    store.leases.renew(controller)
    assert store.renew_claims("living", [claim]) == []


@pytest.mark.parametrize("off", [HOUR, -HOUR])
def test_a_ticket_waits_as_long_where_the_clock_of_redis_is_another(store, set_clock, off):
    set_clock(off)
    store.issue(store.leases.acquire("controller", "c"), tickets(0), capacity=9)
    time.sleep(1.0)
    (claim,) = store.claim("w", 1)
    assert 1.0 <= time.monotonic() - claim.issued_at < 60
    set_clock(off - 2 * HOUR)
    (claim,) = store.claim("w", 1)
    assert 0.0 <= time.monotonic() - claim.issued_at < 60


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_a_failed_ticket_rests_as_long_as_before_although_the_clock_jumped(store, set_clock, jump):
    store.issue(store.leases.acquire("controller", "c", ttl_s=600.0), tickets(0), capacity=9)
    first, second = store.claim("w", 2)
    began = time.monotonic()
    store.fail(first, "its server broke", pause_s=60.0)
    store.fail(second, "its server broke", pause_s=1.0)
    set_clock(jump)
    while not (claims := store.claim("w", 2)):
        time.sleep(0.05)
    assert 1.0 <= time.monotonic() - began < 60
    assert [claim.ticket.k for claim in claims] == [second.ticket.k]


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_claims_and_leases_of_a_dead_process_expire_on_time_although_the_clock_jumped(store, set_clock, jump):
    store.issue(store.leases.acquire("controller", "dead", ttl_s=600.0), tickets(0), capacity=9)
    first, second = store.claim("dead", 2)
    store.state.beat("dead", {}, ttl_s=0.3)
    assert store.fail(second, "its server broke") == "retry"
    dead = store.leases.acquire("controller", "dead", ttl_s=0.3)
    set_clock(jump)
    assert [claim.ticket.k for claim in store.claim("living", 2, min_idle_s=30.0)] == [second.ticket.k]
    time.sleep(0.5)
    assert store.claim("living", 2, min_idle_s=0.3)[0].ticket.k == first.ticket.k
    assert store.state.beats() == {}
    taken = store.leases.acquire("controller", "living")
    with pytest.raises(LeaseLost):
        store.leases.renew(dead)
    store.leases.renew(taken)
