"""The addresses of this machine: which of them others reach, and by which interface. Light."""

from __future__ import annotations

import ipaddress
from contextlib import suppress


def is_local(host: str) -> bool:
    """Whether only this machine reaches a server that is bound to `host`, an IP address or the name `localhost`."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def interface_of(address: str) -> str | None:
    """The name of the network interface that has this IP address. None if no interface of this machine has it."""
    import psutil

    for name, found in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] == address for one in found):
            return name
    return None
