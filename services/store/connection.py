"""The connection to Redis: it runs scripts, waits while Redis is down or refuses to serve, and raises our own errors.

Every script is idempotent: if it is called again after a lost reply, it changes nothing and answers the same. So a call
is repeated after a connection error, until Redis has been down for `redis.outage_seconds`. A call that Redis refuses
because its disk is full is repeated too, maybe for longer: Redis refuses a script at its first write, or not at all.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthorizationError, MasterDownError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

from services.config.redis import RedisSection
from services.errors import LeaseLost, StoreFault, Unanswered, UserError
from services.outages import retry
from services.process.addresses import is_host
from services.telemetry.logs import get_logger

if TYPE_CHECKING:
    from services.store.lease import Lease

SENTINEL_PORT = 26379
OLDEST = (6, 2)
"""XAUTOCLAIM came with Redis 6.2."""
NO_EVICTION = "noeviction"
UNAVAILABLE = (redis.ConnectionError, redis.TimeoutError, redis.ReadOnlyError, MasterDownError)
"""Errors after which a call is repeated."""
REFUSED = (redis.AuthenticationError, AuthorizationError)
"""Connection errors after which a call is not repeated."""
UNABLE = re.compile(r"(^|-|: )(MISCONF|NOREPLICAS|BUSY|OOM) |used memory > 'maxmemory'")
"""Matches replies of a Redis that runs and can do nothing for now: its disk or its memory is full, it has lost its
replicas, or a script has kept it for five seconds. Redis 6.2 puts the code into the text of a script's error."""
DISK_FULL = re.compile(r"(^|-|: )MISCONF ")
KEYS = ("tickets", "outstanding", "groups", "ready", "episodes", "manifests", "drops", "failed", "counters",
        "evals", "attempts", "turns", "lost", "claims")
"""Names of the keys, in the order of prelude.lua. The caller's lease and `beats` follow them."""
T = TypeVar("T")
log = get_logger("store")


class _ExplainingSentinel(Sentinel):
    """redis-py's client of the sentinels, with the reason of each one in the error if none names a master.

    redis-py's own message shows all options of each client, and neither a wrong certificate nor a wrong password.
    """

    def discover_master(self, service_name: str) -> tuple[str, int]:
        """Returns host and port. Raises AuthenticationError if all sentinels refuse us, else MasterNotFoundError."""
        try:
            return super().discover_master(service_name)
        except MasterNotFoundError:
            refusals = {self._address(client): self._refusal(client, service_name) for client in self.sentinels}
        reasons = "; ".join(f"{address}: {error}" for address, error in refusals.items())
        refused = all(isinstance(error, redis.AuthenticationError) for error in refusals.values())
        kind = redis.AuthenticationError if refused else MasterNotFoundError
        raise kind(f"no sentinel names a master {service_name}: {reasons}")

    def _refusal(self, client: redis.Redis, service_name: str) -> object:
        """Returns why this sentinel names no master."""
        try:
            masters: Any = client.sentinel_masters()
        except (redis.ConnectionError, redis.TimeoutError) as error:
            return error
        return "its master is down" if service_name in masters else "it knows no such master"

    @staticmethod
    def _address(client: redis.Redis) -> str:
        place = client.get_connection_kwargs()
        return f"{place['host']}:{place['port']}"


def connect_master(url: str, options: dict[str, Any]) -> Any:
    """Returns a client that asks the sentinels for the master whenever it connects. Raises ValueError for a bad URL.

    `url` is sentinel://[user:password@]host:port[,host:port]/name[/db]. `options` go to all clients. Each sentinel is
    asked without a login first and then with the master's: many charts for Kubernetes give both one password, and a
    sentinel without a password refuses any login.
    """
    parts = urlsplit(url)
    user_password, _, hosts = parts.netloc.rpartition("@")
    user, _, password = map(unquote, user_password.partition(":"))
    name, _, database = parts.path.strip("/").partition("/")
    addresses = [urlsplit(f"//{host}") for host in hosts.split(",")]
    if not name or not all(address.hostname and is_host(address.hostname) for address in addresses):
        raise ValueError("sentinel:// needs hosts and the name of the master")
    login = {key: text for key, text in (("username", user), ("password", password)) if text}
    places = [(str(address.hostname), address.port or SENTINEL_PORT) for address in addresses]
    sentinels = _ExplainingSentinel(places, sentinel_kwargs=options)
    if login:
        sentinels.sentinels += Sentinel(places, sentinel_kwargs={**login, **options}).sentinels
    return sentinels.master_for(name, db=int(database or 0), **login, **options)


def briefly(settings: RedisSection) -> RedisSection:
    """Returns the settings for callers that should fail soon instead of waiting: commands about a run, scrapes."""
    return settings.model_copy(update={"outage_seconds": 3.0})


BRIEFLY = briefly(RedisSection())


class NotReady(StoreFault):
    """A group of the manifest is no longer ready, because it was dropped meanwhile. Read ready() again."""


@cache
def _source(name: str) -> str:
    folder = Path(__file__).parent
    return (folder / "prelude.lua").read_text(encoding="utf-8") + (folder / f"{name}.lua").read_text(encoding="utf-8")


def connect(url: str, timeout_s: float, ca_file: Path | None = None) -> Any:
    """Returns a client that opens no socket before its first call and repeats no call. Raises UserError for a bad URL.

    `url` is redis://, rediss:// or unix://, or sentinel://[user:password@]host:port[,host:port]/name[/db]. With
    sentinels:// both the sentinels and the master are asked over TLS, as with rediss://.
    """
    options: dict[str, Any] = {
        "socket_timeout": timeout_s, "socket_connect_timeout": timeout_s, "retry": Retry(NoBackoff(), 0)}
    scheme = url.partition(":")[0]
    if ca_file is not None:
        if scheme not in ("rediss", "sentinels"):
            raise UserError(f"redis.ca_file is set, but redis.url begins with {scheme}:",
                            "write rediss://host:6379/0 or sentinels://host:26379/name")
        options["ssl_ca_certs"] = str(ca_file)
    if scheme == "sentinels":
        options["ssl"] = True  # from_url finds it out by itself
    try:
        return connect_master(url, options) if scheme in ("sentinel", "sentinels") else _connect_server(url, options)
    except ValueError as error:
        raise UserError(f"redis.url is not a Redis address: {error}",
                        "write redis://host:6379/0 or sentinel://host:26379/name") from error


def _connect_server(url: str, options: dict[str, Any]) -> Any:
    if not is_host(urlsplit(url).hostname or ""):
        raise ValueError("no name service can be asked for its host")
    return redis.Redis.from_url(url, **options)


class Connection:
    """The keys of one run on one Redis. It is thread-safe, and opens sockets at the first call.

    All keys start with `gagpo:{run}:`, so they are in one slot.
    """

    def __init__(self, url: str, run: str, timeout_s: float, settings: RedisSection, *, disk_s: float = 0.0) -> None:
        self._prefix = f"gagpo:{{{run}}}:"
        self._outage_s = settings.outage_seconds
        self._disk_s = max(settings.outage_seconds, disk_s)
        self.longest_s = self._disk_s + 3 * timeout_s
        """Longest time of any call in seconds: the outage, and a last try that connects, asks and reads the reply."""
        self.redis = connect(url, timeout_s, settings.ca_file)
        self._scripts: dict[str, Any] = {}

    def key(self, name: str) -> str:
        """Returns the full name of a key."""
        return self._prefix + name

    def check(self) -> None:
        """Tries once. Raises Unanswered if Redis is unavailable or a replica, UserError if it refuses us, may evict
        keys, is a cluster, or is older than 6.2."""
        try:
            about = self.redis.info()
        except REFUSED as error:
            raise UserError(f"Redis refused the password ({error})", "correct redis.url") from error
        except redis.RedisError as error:
            message = f"Redis cannot be reached ({error})"
            if "CERTIFICATE" in str(error).upper():
                raise UserError(message, "set redis.ca_file") from error
            kind = Unanswered if isinstance(error, UNAVAILABLE) else UserError
            raise kind(message, "start it or correct redis.url") from error
        version = str(about["redis_version"])
        if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
            raise UserError(f"Redis {version} is too old", "use 6.2 or newer, or leave redis.url out for a private one")
        if int(about.get("cluster_enabled", 0)):
            raise UserError("redis.url is a node of a Redis cluster, which gagpo does not use",
                            "give a single server, or its sentinels as sentinel://host:26379/name")
        if about.get("role") == "slave":  # a failover may be under way
            raise Unanswered("redis.url is a replica, which takes no writes",
                             "give its master, or the sentinels as sentinel://host:26379/name")
        policy = about.get("maxmemory_policy", NO_EVICTION)  # a managed Redis may hide fields
        if int(about.get("maxmemory", 0)) and policy != NO_EVICTION:
            raise UserError(f"Redis has maxmemory-policy {policy}, so it may delete episodes",
                            f"set maxmemory-policy to {NO_EVICTION}, or leave redis.url out for a private one")

    def erase(self) -> None:
        """Deletes every key of this run. Use it only for runs that will not be resumed. Raises StoreFault."""
        pattern = self._prefix.replace("[", "\\[") + "*"
        self.retry("erase", lambda: [self.redis.unlink(key) for key in
                                     self.redis.scan_iter(match=pattern, count=1000)])

    def script(self, name: str, *args: str | bytes | float, role: str = "none") -> Any:
        """Runs `<name>.lua` on this run's keys. Raises StoreFault, LeaseLost or NotReady."""
        if name not in self._scripts:
            self._scripts[name] = self.redis.register_script(_source(name))
        keys = [self.key(key) for key in (*KEYS, f"lease:{role}", "beats")]
        return self.retry(name, lambda: self._scripts[name](keys=keys, args=args))

    def fenced(self, name: str, lease: Lease, *args: str | bytes | float) -> Any:
        """Runs `<name>.lua`, which only the holder of `lease` may run. Raises StoreFault, LeaseLost or NotReady."""
        return self.script(name, lease.epoch, lease.holder, *args, role=lease.role)

    def read(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Returns the replies to several reads at one moment (MULTI). Each command is its name, a key without the
        run's prefix, and further arguments. Raises StoreFault."""
        def ask() -> list[Any]:
            pipe = self.redis.pipeline(transaction=True)
            for command, key, *args in commands:
                pipe.execute_command(command, self.key(key), *args)
            return pipe.execute()

        return self.retry(commands[0][0], ask)

    def retry(self, what: str, call: Callable[[], T]) -> T:
        """Returns the result of `call`, repeated while Redis is unavailable. Raises a StoreFault that names `what`."""
        since = time.monotonic()  # of the outage. A Redis that waits for its disk is available

        def warn(error: Exception) -> None:
            log.warning("Redis is unavailable; waiting for it", call=what, reason=str(error),
                        at_most_s=self._disk_s if self._waits_for_disk(error) else self._outage_s)

        def temporary(error: Exception) -> bool:
            nonlocal since
            if _demoted(error):
                self.redis.connection_pool.disconnect(inuse_connections=False)
            if self._waits_for_disk(error):
                since = time.monotonic()
            return _is_unavailable(error) and time.monotonic() - since <= self._outage_s

        try:
            return retry(call, seconds=self._disk_s, temporary=temporary, report=warn)
        except redis.RedisError as error:
            raise fault(what, error, self._outage_s) from error

    def _waits_for_disk(self, error: Exception) -> bool:
        """Whether Redis refuses because of a full disk, which calls wait for longer than for any other outage."""
        return self._disk_s > self._outage_s and DISK_FULL.search(str(error)) is not None


def _is_unavailable(error: Exception) -> bool:
    """Whether a later call may succeed."""
    if isinstance(error, redis.ResponseError):
        return isinstance(error, UNAVAILABLE) or _demoted(error) or bool(UNABLE.search(str(error)))
    return isinstance(error, UNAVAILABLE) and not isinstance(error, REFUSED)


def _demoted(error: Exception) -> bool:
    """Whether a master has become a replica. It keeps its connections, and its address may lead to another one now.

    If a script meets it, Redis 6.2 puts it into the text of another error."""
    return isinstance(error, redis.ReadOnlyError) or "-READONLY " in str(error)


def fault(what: str, error: redis.RedisError, outage_s: float) -> StoreFault:
    """Returns our own error for one of Redis or of a script. `outage_s`: how long the call waited for Redis."""
    text = str(error)
    kind = {"LEASELOST": LeaseLost, "NOTREADY": NotReady}.get(text.split(" ", 1)[0], StoreFault)
    why = ""
    if UNABLE.search(text):
        why = "; give Redis the memory, the disk or the replicas that it lacks, and continue with --resume"
    elif _is_unavailable(error):
        why = f"; Redis was unavailable for {outage_s:g} s (redis.outage_seconds)"
    return kind(f"{what}: {text}{why}")
