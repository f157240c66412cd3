"""The addresses of this machine: which ones other machines can reach, and through which interface. Light."""

from __future__ import annotations

import ipaddress
import socket
from contextlib import suppress


def is_local(host: str) -> bool:
    """Returns whether only this machine can reach a server bound to `host`, an IP address or `localhost`."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def interface_of(address: str) -> str | None:
    """Returns the name of the network interface that has this IP address, or None."""
    import psutil

    for name, found in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] == address for one in found):
            return name
    return None


def free_port(host: str = "127.0.0.1") -> int:
    """Returns a port of this address that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
