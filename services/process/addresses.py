"""Which addresses are this machine's alone. Light."""

from __future__ import annotations

import ipaddress
from contextlib import suppress


def is_local(host: str) -> bool:
    """Whether only this machine reaches what is bound to `host`, an IP address or a name; of names, `localhost`."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
