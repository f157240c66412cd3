"""Asks whether a Ray cluster answers before ray.init does, which prints RPC errors for minutes if none does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from services.config.tree import Config
from services.errors import UserError

CONNECT_S = 5.0
HEALTH_S = 15.0
"""Importing Ray takes some of it on a busy machine. With CONNECT_S it makes 20 s."""


def ray_address(config: Config) -> str | None:
    """Returns the address of the cluster that a run joins: the config's, else $RAY_ADDRESS; None for a private one."""
    return config.ray.address or os.environ.get("RAY_ADDRESS") or None


def check_ray(address: str, *, health_s: float = HEALTH_S) -> None:
    """Raises UserError if no Ray of this version answers at `address` in time.

    `auto` is looked up by Ray itself. A Ray client's address (`ray://`) is only connected to: its port is a proxy's.
    """
    if address == "local":
        return
    if address != "auto":
        _connect(address)
    if address.startswith("ray://"):
        return
    # In a process of its own: Ray's client prints to stderr, retries for long, and cannot be told to stop.
    try:
        done = subprocess.run([sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address],
                              capture_output=True, text=True, timeout=health_s, stdin=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired:
        raise _refusal(address, f"no answer within {health_s:.0f} s") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise _refusal(address, said[-1].strip() if said else f"its health check ends with {done.returncode}")


def _connect(address: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise UserError(f"{address!r} is no address of a Ray cluster", "write host:port, for example 10.0.0.1:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise _refusal(address, str(error)) from None


def _refusal(address: str, reason: str) -> UserError:
    return UserError(f"no Ray cluster answers at {address} ({reason})",
                     "start one, or unset RAY_ADDRESS and ray.address for a private one")
