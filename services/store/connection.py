"""The line to Redis: scripts, bounded retries, and errors in our own words.

Every script is idempotent: called again after a lost reply it changes nothing and answers the same. So a call that
met a connection error may always be repeated, and is, a few times.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from services.errors import LeaseLost, StoreFault, UserError

OLDEST = (6, 2)
"""XAUTOCLAIM came with Redis 6.2."""
RETRIES = 6
"""With waits of 0.05 s doubling up to 1 s: about 2.5 s, enough for a Redis that restarts at once."""
KEYS = ("tickets", "outstanding", "groups", "ready", "episodes", "manifests", "drops", "failed", "counters",
        "evals")
"""In the order in which prelude.lua names them; the caller's lease and `beats` follow."""


class NotReady(StoreFault):
    """A group of the manifest is not ready any more (dropped meanwhile): read ready() again."""


@cache
def _source(name: str) -> str:
    folder = Path(__file__).parent
    return (folder / "prelude.lua").read_text() + (folder / f"{name}.lua").read_text()


class Connection:
    """One run's keys on one Redis. Thread-safe; the sockets open at the first call.

    All keys start with `gagpo:{run}:`; the braces keep them on one node of a Redis cluster.
    """

    def __init__(self, url: str, run: str, timeout_s: float) -> None:
        self._prefix = f"gagpo:{{{run}}}:"
        try:
            self.redis, self._once = (self._client(url, timeout_s, retries) for retries in (RETRIES, 0))
        except ValueError as error:
            raise UserError(f"redis.url is not a Redis address: {error}", "write redis://host:6379/0") from error
        self._scripts: dict[str, Any] = {}

    @staticmethod
    def _client(url: str, timeout_s: float, retries: int) -> Any:
        retry = Retry(ExponentialBackoff(cap=1.0, base=0.05), retries)
        return redis.Redis.from_url(url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=retry)

    def key(self, name: str) -> str:
        """The full name of a key."""
        return self._prefix + name

    def check(self) -> None:
        """One try. Raises UserError if Redis is unreachable, refuses us, or is older than 6.2."""
        try:
            version = str(self._once.info("server")["redis_version"])
        except redis.AuthenticationError as error:
            raise UserError(f"Redis refused the password ({error})", "correct redis.url") from error
        except redis.RedisError as error:
            raise UserError(f"Redis cannot be reached ({error})", "start it or correct redis.url") from error
        if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
            raise UserError(f"Redis {version} is too old", "use 6.2 or newer, or leave redis.url out for a private one")

    def erase(self) -> None:
        """Deletes every key of this run: for runs that nobody will go on with. Raises StoreFault."""
        try:
            for key in self.redis.scan_iter(match=self._prefix.replace("[", "\\[") + "*", count=1000):
                self.redis.unlink(key)
        except redis.RedisError as error:
            raise fault("erase", error) from error

    def script(self, name: str, *args: str | bytes | float, role: str = "none") -> Any:
        """Runs `<name>.lua` on this run's keys. Raises StoreFault, LeaseLost or NotReady."""
        if name not in self._scripts:
            self._scripts[name] = self.redis.register_script(_source(name))
        keys = [self.key(key) for key in (*KEYS, f"lease:{role}", "beats")]
        try:
            return self._scripts[name](keys=keys, args=args)
        except redis.RedisError as error:
            raise fault(name, error) from error

    def read(self, *commands: tuple[Any, ...]) -> list[Any]:
        """The replies to several reads of one moment (MULTI); a key follows each command's name. Raises StoreFault."""
        pipe = self.redis.pipeline(transaction=True)
        for command, key, *args in commands:
            pipe.execute_command(command, self.key(key), *args)
        try:
            return pipe.execute()
        except redis.RedisError as error:
            raise fault(commands[0][0], error) from error


def fault(what: str, error: redis.RedisError) -> StoreFault:
    """The typed error for what Redis or a script answered."""
    kind = {"LEASELOST": LeaseLost, "NOTREADY": NotReady}.get(str(error).split(" ", 1)[0], StoreFault)
    return kind(f"{what}: {error}")
