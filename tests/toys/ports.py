"""Ports of loopback addresses that a test may name before its server listens."""

import socket

import pytest

from services.process.addresses import likely_port

__all__ = ["likely_port", "needs_ipv6"]


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="this machine has no ::1")
