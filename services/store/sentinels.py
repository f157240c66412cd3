"""The client of the master that Redis Sentinel names."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

import redis
from redis.sentinel import MasterNotFoundError, Sentinel

from services.process.addresses import is_host

PORT = 26379


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
    places = [(str(address.hostname), address.port or PORT) for address in addresses]
    sentinels = _ExplainingSentinel(places, sentinel_kwargs=options)
    if login:
        sentinels.sentinels += Sentinel(places, sentinel_kwargs={**login, **options}).sentinels
    return sentinels.master_for(name, db=int(database or 0), **login, **options)
