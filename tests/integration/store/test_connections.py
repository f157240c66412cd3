"""Connections to an existing Redis: TLS with a private certificate, and sentinels that replace a dead master."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import redis
from ports import likely_port
from waiting import wait_until

from services.config.redis import RedisSection
from services.errors import StoreFault, Unanswered, UserError
from services.store.connection import briefly
from services.store.redis_server import find_redis, redis_version
from services.store.store import Store

SYSTEM = Path(shutil.which("redis-server", path=os.pathsep.join(
    folder for folder in os.get_exec_path() if Path(folder) != Path(sys.executable).parent)) or find_redis())
"""The server that a user of redis.url has: the distribution's if it is installed. The bundled one has no TLS."""
PASSWORD = "a-secret"
START_S = 60.0


@pytest.fixture
def start(tmp_path):
    """Provides `start(name, lines, arguments...)`, which starts a redis-server in its own folder and waits for its
    port."""
    started: list[subprocess.Popen] = []

    def run(name: str, port: int, lines: list[str], *arguments: str, binary: Path | None = None) -> subprocess.Popen:
        folder = tmp_path / name
        folder.mkdir()
        file = folder / "redis.conf"
        file.write_text("\n".join(["bind 127.0.0.1", f"dir {folder}", "logfile redis.log", *lines]) + "\n")
        started.append(subprocess.Popen([binary or SYSTEM, file, *arguments], stdin=subprocess.DEVNULL))
        deadline = time.monotonic() + START_S
        while True:
            assert started[-1].poll() is None, (folder / "redis.log").read_text()[-2000:]
            assert time.monotonic() < deadline
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
            except ConnectionRefusedError:
                time.sleep(0.05)
            else:
                return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait(60)


@pytest.fixture
def certificate(tmp_path) -> tuple[Path, Path]:
    """Provides a key and a self-signed certificate for 127.0.0.1, if Redis was built with TLS."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    if b"libssl" not in subprocess.run(["ldd", SYSTEM], capture_output=True, timeout=10, check=False).stdout:
        pytest.skip("this redis-server was built without TLS")
    key, file = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=redis", "-addext",
         "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", file], check=True, capture_output=True, timeout=60)
    return key, file


def over_tls(port: int, certificate: tuple[Path, Path]) -> list[str]:
    key, file = certificate
    return ["port 0", f"tls-port {port}", f"tls-cert-file {file}", f"tls-key-file {key}", f"tls-ca-cert-file {file}",
            "tls-auth-clients no", "tls-replication yes"]


def test_tls_is_checked_against_the_certificates_of_the_config(start, certificate):
    _, file = certificate
    port = likely_port()
    start("tls", port, [*over_tls(port, certificate), f"requirepass {PASSWORD}"])
    url = f"rediss://:{PASSWORD}@127.0.0.1:{port}/0"
    known = Store(url, "run", settings=RedisSection(url=url, ca_file=file))
    known.connection.check()
    assert known.leases.acquire("controller", "c").epoch == 1
    Store(url, "run", settings=briefly(RedisSection(url=url, ca_file=file))).connection.check()
    with pytest.raises(UserError, match=r"(?i)certificate.verify.failed.*redis\.ca_file"):
        Store(url, "run").connection.check()
    with pytest.raises(UserError, match=r"redis\.ca_file is set, but redis\.url begins with redis:"):
        Store(url.replace("rediss", "redis"), "run", settings=RedisSection(url=url, ca_file=file))


def test_sentinels_lead_to_the_new_master_when_the_old_one_dies(start):
    first, second, watch = likely_port(), likely_port(), likely_port()
    login = [f"requirepass {PASSWORD}", f"masterauth {PASSWORD}", "appendonly yes"]
    master = start("first", first, [f"port {first}", *login])
    start("second", second, [f"port {second}", *login, f"replicaof 127.0.0.1 {first}"])
    start("sentinel", watch, [
        f"port {watch}", f"sentinel monitor runs 127.0.0.1 {first} 1", f"sentinel auth-pass runs {PASSWORD}",
        "sentinel down-after-milliseconds runs 500", "sentinel failover-timeout runs 5000"], "--sentinel")
    store = Store(f"sentinel://:{PASSWORD}@127.0.0.1:{watch}/runs", "run", timeout_s=5.0,
                  settings=RedisSection(outage_seconds=60))
    store.connection.check()
    lease = store.leases.acquire("controller", "c")
    replica = redis.Redis(port=second, password=PASSWORD, socket_timeout=60)
    deadline = time.monotonic() + START_S
    while not replica.exists(store.connection.key("lease:controller")) or not sees_replica(watch):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    master.send_signal(signal.SIGKILL)
    store.leases.renew(lease)
    assert replica.info("replication")["role"] == "master"


def test_sentinels_and_their_master_are_asked_over_tls(start, certificate):
    port, watch = likely_port(), likely_port()
    start("master", port, [*over_tls(port, certificate), f"requirepass {PASSWORD}"])
    start("sentinel", watch, [*over_tls(watch, certificate), f"sentinel monitor runs 127.0.0.1 {port} 1",
                              f"sentinel auth-pass runs {PASSWORD}"], "--sentinel")
    url, settings = f"sentinels://:{PASSWORD}@127.0.0.1:{watch}/runs", RedisSection(ca_file=certificate[1], url="redis://")
    store = Store(url, "run", settings=settings)
    store.connection.check()
    assert store.leases.acquire("controller", "c").epoch == 1
    with pytest.raises(UserError, match=r"(?i)certificate.verify.failed.*redis\.ca_file"):
        Store(url, "run").connection.check()
    with pytest.raises(UserError, match=r"write rediss://host:6379/0 or sentinels://host:26379/name"):
        Store(url.replace("sentinels", "sentinel"), "run", settings=settings)


def test_sentinels_that_ask_for_the_password_of_the_master_get_it(start):
    """As charts for Kubernetes set them up. A sentinel of the same list may as well ask for none."""
    port, watches = likely_port(), [likely_port(), likely_port()]
    start("master", port, [f"port {port}", f"requirepass {PASSWORD}", "appendonly yes"])
    for watch, login in zip(watches, ([f"requirepass {PASSWORD}"], []), strict=True):
        start(f"sentinel{watch}", watch, [f"port {watch}", *login, f"sentinel monitor runs 127.0.0.1 {port} 1",
                                          f"sentinel auth-pass runs {PASSWORD}"], "--sentinel")
        Store(f"sentinel://:{PASSWORD}@127.0.0.1:{watch}/runs", "run").connection.check()
    asks, asks_not = (f"127.0.0.1:{watch}" for watch in watches)
    with pytest.raises(UserError, match=rf"^Redis refused the password \(no sentinel names a master runs: {asks}: .*"
                                        rf"invalid .*password.*\); correct redis\.url$"):
        Store(f"sentinel://:wrong@{asks}/runs", "run").connection.check()
    with pytest.raises(Unanswered, match=rf"names a master other: {asks_not}: it knows no such master\); start it or"):
        Store(f"sentinel://{asks_not}/other", "run").connection.check()


@contextmanager
def address_of(ports: list[int]) -> Iterator[int]:
    """Yields a port that leads to the last of `ports`, as the name of a managed Redis leads to its master. Connections
    stay where they are."""
    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", ports[-1])
        await asyncio.gather(carry(reader, there[1]), carry(there[0], writer))

    async def ended() -> None:
        server.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(asyncio.start_server(lead, "127.0.0.1", 0), loop).result(60)
    yield server.sockets[0].getsockname()[1]
    asyncio.run_coroutine_threadsafe(ended(), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(60)


def test_a_master_that_became_a_replica_is_left_for_the_one_that_its_address_leads_to_now(start, binary: Path):
    """Its connections live on, and refuse every write. Redis 6.2 tells that of a script in other words."""
    first, second = likely_port(), likely_port()
    start("first", first, [f"port {first}"], binary=binary)
    start("second", second, [f"port {second}", f"replicaof 127.0.0.1 {first}"], binary=binary)
    old, new = (redis.Redis(port=port, socket_timeout=60) for port in (first, second))
    wait_until(lambda: new.info("replication")["master_link_status"] == "up")
    ports = [first]
    with address_of(ports) as port:
        store = Store(f"redis://127.0.0.1:{port}/0", "run", settings=RedisSection(outage_seconds=60))
        lease = store.leases.acquire("controller", "c")
        wait_until(lambda: new.exists(store.connection.key("lease:controller")))
        new.replicaof("NO", "ONE")
        old.replicaof("127.0.0.1", second)
        with pytest.raises(redis.ReadOnlyError):
            old.set("any", "1")
        ports.append(second)
        store.leases.renew(lease)
        store.connection.redis.close()


def sees_replica(watch: int) -> bool:
    """Whether the sentinel knows a replica that it can promote."""
    return redis.Redis(port=watch, socket_timeout=60).sentinel_master("runs")["num-slaves"] == 1


def no_memory(admin: redis.Redis, _folder: Path) -> Callable[[], object]:
    admin.config_set("maxmemory", 1)
    return lambda: admin.config_set("maxmemory", 0)


def no_replicas(admin: redis.Redis, _folder: Path) -> Callable[[], object]:
    admin.config_set("min-replicas-to-write", 1)
    return lambda: admin.config_set("min-replicas-to-write", 0)


def no_disk(admin: redis.Redis, folder: Path) -> Callable[[], object]:
    """A dump that cannot be written: its folder is gone."""
    admin.ping()  # it logs no more lines then: one in the middle of the removal would make its log, and the folder stay
    shutil.rmtree(folder)
    admin.bgsave()
    wait_until(lambda: admin.info("persistence")["rdb_last_bgsave_status"] == "err")
    return lambda: admin.config_set("stop-writes-on-bgsave-error", "no")


def endless_script(admin: redis.Redis, _folder: Path) -> Callable[[], object]:
    admin.config_set("lua-time-limit", 10)
    def run() -> None:
        with pytest.raises(redis.ResponseError, match=r"(?i)script killed"):
            admin.eval("while true do end", 0)

    threading.Thread(target=run).start()
    wait_until(lambda: "BUSY" in said(admin))
    return admin.script_kill


def said(admin: redis.Redis) -> str:
    try:
        admin.get("any")
    except redis.ResponseError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("make_unable", [no_memory, no_replicas, no_disk, endless_script])
def test_a_redis_that_can_do_nothing_for_now_is_waited_for(start, tmp_path, make_unable):
    port = likely_port()
    start("unable", port, [f"port {port}", "save 3600 1000000"])
    able_again = make_unable(redis.Redis(port=port, socket_timeout=60), tmp_path / "unable")
    impatient = Store(f"redis://127.0.0.1:{port}/0", "run", settings=RedisSection(outage_seconds=1))
    with pytest.raises(StoreFault, match=r"acquire: .*; give Redis the memory, the disk"):
        impatient.leases.acquire("controller", "c")
    soon = threading.Timer(0.5, able_again)
    soon.start()
    store = Store(f"redis://127.0.0.1:{port}/0", "run", settings=RedisSection(outage_seconds=240))
    assert store.leases.acquire("controller", "c").epoch == 1
    soon.join()


def test_an_address_that_is_none_says_how_one_looks():
    for wrong in ("http://host:6379", "sentinel://host:26379", "redis://host..ns:6379", "sentinel://a,b..c/name"):
        with pytest.raises(UserError, match=r"not a Redis address.*; write redis://host:6379/0 or sentinel://"):
            Store(wrong, "run")


def test_a_redis_that_evicts_keys_is_refused(start):
    port = likely_port()
    start("evicting", port, [f"port {port}", "maxmemory 100mb", "maxmemory-policy volatile-lru"])
    store, admin = Store(f"redis://127.0.0.1:{port}/0", "run"), redis.Redis(port=port, socket_timeout=60)
    with pytest.raises(UserError, match=r"policy volatile-lru, .*; set maxmemory-policy to noeviction, or leave"):
        store.connection.check()
    admin.config_set("maxmemory", 0)
    store.connection.check()
    admin.config_set("maxmemory", 100 << 20)
    admin.config_set("maxmemory-policy", "noeviction")
    store.connection.check()


def test_a_replica_is_refused_by_name_and_waited_for_until_it_is_the_master(start):
    """It would let every check pass and refuse the run's first write, five minutes long."""
    port = likely_port()
    start("replica", port, [f"port {port}", f"replicaof 127.0.0.1 {likely_port()}"])
    store, admin = Store(f"redis://127.0.0.1:{port}/0", "run"), redis.Redis(port=port, socket_timeout=60)
    with pytest.raises(Unanswered, match=r"a replica, .*; give its master, or the sentinels as sentinel://"):
        store.connection.check()
    admin.replicaof("NO", "ONE")
    store.connection.check()


def test_a_node_of_a_cluster_is_refused_by_name(start):
    if redis_version(SYSTEM)[1] < (7,):
        pytest.skip("Redis 6 can be given no port for the bus of a cluster")
    port = likely_port()
    start("cluster", port, [f"port {port}", "cluster-enabled yes", f"cluster-port {likely_port()}"])
    with pytest.raises(UserError, match="node of a Redis cluster"):
        Store(f"redis://127.0.0.1:{port}/0", "run").connection.check()
