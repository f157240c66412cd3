"""Several machines on one: network namespaces on a bridge. Needs root and the right to make them.

Their names begin with the id of the process that made them, so that the next one removes what a killed one left.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

HOSTS = Path("/etc/netns")
"""`ip netns exec` mounts what is below its folder of a namespace over /etc."""
OURS = re.compile(r"(?:gagpo-?|gr)(\d+)")


@dataclass(frozen=True)
class Node:
    """One namespace. `enter` begins a command that runs in it; its hostname is `localhost`, which is 127.0.0.1."""

    name: str
    address: str

    @property
    def enter(self) -> list[str]:
        return [*self.inside, "unshare", "--uts", "sh", "-c", 'hostname localhost; exec "$@"', "sh"]

    @property
    def inside(self) -> list[str]:
        """Begins a command with this node's network and its /etc/hosts."""
        return ["ip", "netns", "exec", self.name]

    def knows(self, name: str, addresses: Sequence[str]) -> None:
        """Makes `name` lead to these addresses, and to no others, for all processes of this node."""
        hosts = ["127.0.0.1 localhost", *(f"{address} {name}" for address in addresses)]
        # In place: the processes see this file and not another one of its name.
        (HOSTS / self.name / "hosts").write_text("\n".join(hosts) + "\n")


def why_not() -> str:
    """Returns why no namespaces can be made here; empty if they can."""
    if os.geteuid() or shutil.which("ip") is None:
        return "network namespaces need root and the command ip"
    probe = f"gagpo-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "del", probe], capture_output=True, check=False)
    return made.stderr.strip()


@contextmanager
def nodes(count: int, *, subnet: str = "10.77.9", bridge: str | None = None) -> Iterator[list[Node]]:
    """Yields so many nodes on one bridge; this machine is `subnet`.1 to them. Removes all of it at the end.

    `bridge`: one that exists and has that address. None: the nodes get one of their own.
    """
    sweep()
    tag = os.getpid()
    own, bridge = bridge is None, bridge or f"gagpo{tag}"
    made = [Node(f"gagpo-{tag}-{i}", f"{subnet}.{10 + i}") for i in range(count)]
    try:
        if own:
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
            (HOSTS / node.name).mkdir(parents=True)
            node.knows("localhost", ())
        yield made
    finally:
        _remove([node.name for node in made], [bridge] if own else [])


def sweep() -> None:
    """Removes the nodes and bridges of processes that were killed."""
    links = Path("/sys/class/net").glob("gagpo*")
    _remove(list(filter(orphaned, named_nodes())), [link.name for link in links if orphaned(link.name)])


def named_nodes() -> list[str]:
    """Returns the names of all network namespaces of this machine."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in listed.splitlines()]


def orphaned(name: str) -> bool:
    """Whether the process that this is named after is gone."""
    owner = OURS.match(name)
    return owner is not None and not psutil.pid_exists(int(owner[1]))


def _remove(names: Sequence[str], bridges: Sequence[str]) -> None:
    for name in names:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        shutil.rmtree(HOSTS / name, ignore_errors=True)
    for link in bridges:
        subprocess.run(["ip", "link", "del", link], capture_output=True, check=False)


def ip(*words: str) -> None:
    """Calls ip once. Raises CalledProcessError."""
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
