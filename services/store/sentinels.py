"""The master that Redis Sentinel names. Its passwords and its errors are told as those of a single Redis."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

import redis
from redis.sentinel import MasterNotFoundError, Sentinel

from services.process.addresses import is_host

PORT = 26379


class _Sentinels(Sentinel):
    """Sentinels that are asked without a login first, and then with the master's: many charts for Kubernetes give both
    one password, and a sentinel without a password refuses any login."""

    def __init__(self, addresses: list[tuple[str, int]], login: dict[str, str], options: dict[str, Any]) -> None:
        super().__init__([])  # its own clients have one login for all sentinels
        self._asked = [_Asked(host, port, {}, options, "it asks for a password") for host, port in addresses]
        if login:
            self._asked += [_Asked(host, port, login, options, "it refuses the login") for host, port in addresses]

    def discover_master(self, service_name: str) -> tuple[str, int]:
        """Returns host and port. Raises AuthenticationError if all sentinels refuse us, MasterNotFoundError if none
        knows a master that is up."""
        refusals: dict[str, Exception | None] = {}
        for asked in self._asked:
            try:
                masters: Any = asked.client.sentinel_masters()
            except (redis.ConnectionError, redis.TimeoutError) as error:
                told = asked.refusal if isinstance(error, redis.AuthenticationError) else error
                refusals[f"{asked.address}: {told}"] = error
                continue
            state = masters.get(service_name)
            if state and self.check_master_state(state, service_name):
                self._asked = sorted(self._asked, key=lambda other: other is not asked)  # it is asked first from now on
                return state["ip"], state["port"]
            refusals[f"{asked.address}: {'its master is down' if state else 'it knows no such master'}"] = None
        told = f"no sentinel names a master {service_name}: {'; '.join(refusals)}"
        refused = all(isinstance(error, redis.AuthenticationError) for error in refusals.values())
        raise redis.AuthenticationError(told) if refused else MasterNotFoundError(told)


class _Asked:
    """A sentinel, asked with one login."""

    def __init__(self, host: str, port: int, login: dict[str, str], options: dict[str, Any], refusal: str) -> None:
        self.address, self.refusal = f"{host}:{port}", refusal
        self.client = redis.Redis(host, port, **login, **options)


def master(url: str, options: dict[str, Any]) -> Any:
    """Returns a client that asks the sentinels for the master whenever it connects. Raises ValueError for a bad URL.

    `url` is sentinel://[user:password@]host:port[,host:port]/name[/db]. `options` go to all clients.
    """
    parts = urlsplit(url)
    user_password, _, hosts = parts.netloc.rpartition("@")
    user, _, password = map(unquote, user_password.partition(":"))
    name, _, database = parts.path.strip("/").partition("/")
    addresses = [urlsplit(f"//{host}") for host in hosts.split(",")]
    if not name or not all(address.hostname and is_host(address.hostname) for address in addresses):
        raise ValueError("sentinel:// needs hosts and the name of the master")
    login = {key: text for key, text in (("username", user), ("password", password)) if text}
    sentinels = _Sentinels([(str(address.hostname), address.port or PORT) for address in addresses], login, options)
    return sentinels.master_for(name, db=int(database or 0), **login, **options)
