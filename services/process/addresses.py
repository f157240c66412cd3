"""The addresses of this machine: which ones other machines can reach, and through which interface. Light."""

from __future__ import annotations

import ipaddress
import socket
from contextlib import suppress
from urllib.parse import SplitResult, urlsplit

from services.errors import UserError

_HOLDERS: list[socket.socket] = []
"""Sockets that keep ports until this process ends."""


def is_local(host: str) -> bool:
    """Returns whether only this machine can reach a server bound to `host`, an IP address or `localhost`."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def is_every_address(host: str) -> bool:
    """Returns whether a server bound to `host` listens on all addresses of its machine, as with 0.0.0.0 or `::`."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_unspecified
    return False


def is_host(name: str) -> bool:
    """Returns whether a name service can be asked for the name: it cannot for one with an empty or overlong part."""
    try:
        name.encode("idna")
    except UnicodeError:
        return False
    return True


def parts_of(url: str) -> SplitResult:
    """Returns the parts of an http or https address. Raises ValueError for anything else, such as an invalid port."""
    parts = urlsplit(url)
    _ = parts.port  # reading it checks it
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_host(parts.hostname):
        raise ValueError(f"{url!r} is no http address")
    return parts


def check_exposure(host: str, token: str | None, variable: str) -> None:
    """Raises UserError if other machines could reach a server without a token, which `variable` would hold."""
    if token is None and not is_local(host):
        raise UserError(f"other machines can reach {host}, and there is no token",
                        f"set {variable} here and for the clients, or bind to 127.0.0.1")


def host_port(host: str, port: int | str) -> str:
    """Returns `HOST:PORT` as in a URL: an address of IPv6 stands in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def family_of(host: str) -> socket.AddressFamily:
    """Returns the family of sockets for an address; names are of IPv4."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def interface_of(address: str) -> str | None:
    """Returns the name of the network interface that has this IP address, or None."""
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] == address for one in addresses):
            return name
    return None


def held_port(host: str = "127.0.0.1") -> int:
    """Returns a port of this address that only servers of this user get, until this process ends.

    The socket that holds it does not listen, so connections are refused until a server takes the port, and again after
    that has ended. A server that asks for this port gets it if it sets SO_REUSEPORT (`reserve(..., held=True)`), which
    the kernel allows to the same user only. So no other user can take the place of a server that has died, and receive
    its clients' secrets.
    """
    return _held(host, socket.SO_REUSEPORT)


def likely_port(host: str = "127.0.0.1") -> int:
    """Returns a port as `held_port` does, for a server that sets SO_REUSEADDR alone, as Redis and Go's do.

    No program gets it by chance. One that sets SO_REUSEADDR takes it on purpose, of any user, while no server listens.
    """
    return _held(host, socket.SO_REUSEADDR)


def _held(host: str, sharing: int) -> int:
    holder = socket.socket(family_of(host))
    holder.setsockopt(socket.SOL_SOCKET, sharing, 1)
    holder.bind((host, 0))
    _HOLDERS.append(holder)
    return int(holder.getsockname()[1])


def servers_behind(url: str) -> tuple[str, ...]:
    """Returns one URL for each address to which the host of `url` leads, in order.

    Also if there is one address: a server keeps its URL, and so its sessions, when a second one joins it. Addresses are
    of IPv4 if there are any. An https URL is kept, because certificates are for names. May wait for a name server.
    Raises OSError if the name does not resolve.
    """
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None:
        return (url,)
    infos = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_STREAM)
    hosts = sorted({str(at[0]) for family, *_, at in infos if family == socket.AF_INET}
                   or {f"[{at[0]}]" for *_, at in infos})
    return tuple(parts._replace(netloc=f"{host}:{parts.port or 80}").geturl() for host in hosts)
