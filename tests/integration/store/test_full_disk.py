"""A Redis whose disk is full. The data of a private one are on the disk of the run's folder."""

import time

import pytest
import redis
from waiting import wait_until

from services.config.file import default_config
from services.errors import StoreFault
from services.store.redis_server import RedisServer
from services.store.store import Store

FULL = r"acquire: .*MISCONF .*; give Redis the memory, the disk or the replicas that it lacks"


@pytest.fixture
def full(tmp_path, binary):
    """Provides the URL of a Redis that cannot write its data: its append-only file is /dev/full.

    Redis notices at the first write: 7 answers it and refuses the next one, 6.2 refuses it already.
    """
    server = RedisServer(tmp_path, binary)
    server.start()
    server.stop()
    (data,) = (file for file in tmp_path.rglob("appendonly*.aof") if ".base." not in file.name)
    data.unlink()
    data.symlink_to("/dev/full")
    server.start()
    with redis.Redis.from_url(server.url) as client:
        wait_until(lambda: refuses_writes(client))
    yield server.url
    server.close()


def refuses_writes(client: redis.Redis) -> bool:
    try:
        client.set("gagpo:any", "1")
    except redis.ResponseError:
        return True
    return False


def seconds_until_refused(url: str, *settings: str) -> float:
    config = default_config(["redis.outage_seconds=1", *settings])
    began = time.monotonic()
    with pytest.raises(StoreFault, match=FULL):
        Store.of_run(config, url, "run").leases.acquire("controller", "c")
    return time.monotonic() - began


def test_a_private_redis_is_waited_for_as_long_as_the_disk_of_the_runs_folder(full: str):
    """It was given up after redis.outage_seconds, while the archive on the same disk was waited for."""
    assert seconds_until_refused(full, "learner.collective_s=2") > 2


def test_another_redis_with_a_full_disk_is_waited_for_as_any_outage_of_it(full: str):
    assert 1 < seconds_until_refused(full, "redis.url=redis://elsewhere:6379/0", "learner.collective_s=60") < 60
