"""Several machines on one: network namespaces on a bridge. Needs root and the right to make them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Node:
    """One namespace. `enter` begins a command that runs in it; its hostname is `localhost`, which is 127.0.0.1."""

    name: str
    address: str

    @property
    def enter(self) -> list[str]:
        return ["ip", "netns", "exec", self.name, "unshare", "--uts", "sh", "-c", 'hostname localhost; exec "$@"', "sh"]


def why_not() -> str:
    """Returns why no namespaces can be made here; empty if they can."""
    if os.geteuid() or shutil.which("ip") is None:
        return "network namespaces need root and the command ip"
    probe = f"gagpo-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "del", probe], capture_output=True, check=False)
    return made.stderr.strip()


@contextmanager
def nodes(count: int, *, subnet: str = "10.77.9") -> Iterator[list[Node]]:
    """Yields so many nodes on one bridge; this machine is `subnet`.1 to them. Removes all of it at the end."""
    tag = os.getpid()
    bridge, made = f"gagpo{tag}"[:15], [Node(f"gagpo-{tag}-{i}", f"{subnet}.{10 + i}") for i in range(count)]
    try:
        ip("link", "add", bridge, "type", "bridge")
        ip("addr", "add", f"{subnet}.1/24", "dev", bridge)
        ip("link", "set", bridge, "up")
        for index, node in enumerate(made):
            outside = f"g{tag}-{index}"[:15]
            ip("netns", "add", node.name)
            ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", node.name)
            ip("link", "set", outside, "master", bridge, "up")
            ip("-n", node.name, "addr", "add", f"{node.address}/24", "dev", "eth0")
            ip("-n", node.name, "link", "set", "eth0", "up")
            ip("-n", node.name, "link", "set", "lo", "up")
        yield made
    finally:
        for node in made:
            subprocess.run(["ip", "netns", "del", node.name], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", bridge], capture_output=True, check=False)


def ip(*words: str) -> None:
    """Calls ip once. Raises CalledProcessError."""
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
