"""A Redis whose disk is full. The data of a private one are on the disk of the run's folder."""

import time

import pytest

from services.config.file import default_config
from services.errors import StoreFault
from services.store.redis_server import RedisServer, find_redis
from services.store.store import Store

FULL = r"acquire: .*MISCONF .*; give Redis the memory, the disk or the replicas that it lacks"


@pytest.fixture
def full(tmp_path):
    """Provides the URL of a Redis that cannot write its data: /dev/full stands in the place of its file."""
    server = RedisServer(tmp_path, find_redis())
    server.start()
    server.stop()
    (data,) = (file for file in tmp_path.rglob("appendonly*.aof") if ".base." not in file.name)
    data.unlink()
    data.symlink_to("/dev/full")
    server.start()
    Store(server.url, "another").acquire("controller", "c")  # the first write that cannot be kept, and tells Redis so
    yield server.url
    server.close()


def seconds_until_refused(url: str, *settings: str) -> float:
    config = default_config(["redis.outage_seconds=1", *settings])
    began = time.monotonic()
    with pytest.raises(StoreFault, match=FULL):
        Store.of_run(config, url, "run").acquire("controller", "c")
    return time.monotonic() - began


def test_a_private_redis_is_waited_for_as_long_as_the_disk_of_the_runs_folder(full: str):
    """It was given up after redis.outage_seconds, while the archive on the same disk was waited for."""
    assert seconds_until_refused(full, "learner.collective_s=4") > 4


def test_another_redis_with_a_full_disk_is_waited_for_as_any_outage_of_it(full: str):
    assert 1 < seconds_until_refused(full, "redis.url=redis://elsewhere:6379/0", "learner.collective_s=60") < 60
