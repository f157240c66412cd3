"""A real Redis and real environment servers in their own processes."""

import subprocess
import sys
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest
from playing_worker import Shelf
from ports import likely_port

from services.store.redis_server import RedisServer, find_redis
from services.store.store import Store

TOYS = Path(__file__).parents[2] / "toys"


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory):
    server = RedisServer(tmp_path_factory.mktemp("redis"), find_redis())
    server.start()
    yield server.url
    server.close()


@pytest.fixture
def run_name() -> str:
    """Gives every test its own store in the shared Redis."""
    return uuid.uuid4().hex[:8]


@pytest.fixture
def store(redis_url, run_name) -> Store:
    return Store(redis_url, run_name)


@pytest.fixture
def serve_toy():
    """Provides `serve_toy(port)`, which starts a toy server and returns (process, url)."""
    started: list[subprocess.Popen] = []

    def start(port: int | None = None):
        command = [sys.executable, str(TOYS / "toy_environment.py"), "--port", str(port or likely_port())]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        ready = process.stdout.readline()
        assert " on http://" in ready, "the server ended before it was ready"
        return process, ready.split(" on ")[1].strip()

    yield start
    for process in started:
        process.kill()
        process.wait(timeout=60)


@pytest.fixture
def world(sampler, store, redis_url, run_name, serve_toy, tiny_model) -> SimpleNamespace:
    server, url = serve_toy()
    return SimpleNamespace(
        engine=sampler, store=store, redis_url=redis_url, run=run_name, server=server, url=url, serve=serve_toy,
        shelf=Shelf(store, tiny_model), lease=store.leases.acquire("controller", "test", ttl_s=600))
