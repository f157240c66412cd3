"""Finds the address of Ray and checks that a cluster answers. If none does, ray.init prints RPC errors for minutes."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys

from services.config.tree import Config
from services.errors import UserError

LOOPBACK = "127.0.0.1"
"""Address of a private Ray. Ray cannot use IPv6 alone: it would try to start for ray.start_seconds."""
CONNECT_S = 5.0
HEALTH_S = 60.0
"""Importing Ray takes most of this time on a busy machine. The connection test
before it finds most wrong addresses."""


def ray_address(config: Config) -> str | None:
    """Returns the address of the cluster that a run joins: ray.address, else $RAY_ADDRESS; None for a private Ray."""
    return config.ray.address or os.environ.get("RAY_ADDRESS") or None


def check_marks(config: Config) -> None:
    """Raises UserError if `placement` names nodes. Called for a private Ray, whose one node has no mark."""
    for role, nodes in config.placement:
        if nodes is not None:
            raise UserError(f"placement.{role}={nodes} marks nodes of a Ray cluster, and this run starts its own",
                            f"set ray.address or $RAY_ADDRESS, or placement.{role}=null")


def check_loopback() -> None:
    """Raises UserError on a machine without 127.0.0.1, where a private Ray and the servers of its run listen."""
    try:
        socket.create_server((LOOPBACK, 0)).close()
    except OSError as error:
        if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            raise
        raise UserError(f"this machine has no {LOOPBACK} ({os.strerror(error.errno)}), where a run's own Ray listens",
                        f"add it (`ip addr add {LOOPBACK}/8 dev lo`), or set ray.address to a cluster") from None


def check_ray(address: str, *, health_s: float = HEALTH_S) -> None:
    """Raises UserError if no Ray of this version answers at `address` in time.

    Ray itself looks up `auto`. For a Ray client's address (`ray://`) only the connection is tested, because a proxy
    listens on that port.
    """
    if address == "local":
        return
    if address != "auto":
        _connect(address)
    if address.startswith("ray://"):
        return
    # The check has its own process: Ray's client prints to stderr, retries for minutes and cannot be stopped.
    try:
        done = subprocess.run([sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address],
                              capture_output=True, encoding="utf-8", errors="replace", timeout=health_s,
                              stdin=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired:
        raise no_cluster(address, f"no answer within {health_s:.0f} s") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise no_cluster(address, lines[-1].strip() if lines else f"its health check ends with {done.returncode}")


def _connect(address: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise UserError(f"{address!r} is not an address of a Ray cluster", "write host:port, for example 10.0.0.1:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except (OSError, OverflowError, UnicodeError) as error:  # the last one for a name with an empty part
        raise no_cluster(address, str(error)) from None


def no_cluster(address: str, reason: str) -> UserError:
    """Returns the UserError for an address at which no Ray answers."""
    return UserError(f"no Ray cluster answers at {address} ({reason})",
                     "start a cluster, or unset RAY_ADDRESS and ray.address for a private one")
