"""One Ray node in a network namespace, with processes, shared memory and temporary files of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.toys.nodes import Node, ip

MACHINE = """
hostname localhost && mount -t tmpfs -o size=2g tmpfs /dev/shm && mount --bind "$0" "$1" && shift && "$@"
exit "$?"
"""
"""Mounts the folder $0 as $1, and then executes the other words. The shell stays as the node's first process and takes
the ends of orphans, as a container's init does: `ray job stop` waits for them, and `ray start` takes none."""
OBJECTS = 100_000_000
"""Bytes of shared memory for Ray's objects: the models here are small."""


class RayNode:
    """One node. `temporary` is the path of its temporary files, the same on all nodes and empty outside them."""

    def __init__(self, node: Node, folder: Path, temporary: Path, environment: Mapping[str, str],
                 options: Sequence[str]) -> None:
        self.node = node
        self._own, self._log = folder / f"{node.name}-files", folder / f"{node.name}.log"
        self._own.mkdir()
        self._environment = {**environment, "TMPDIR": str(temporary)}
        # The kernel ends the node if this process is killed, and with its first process all others.
        self._command = [
            "setpriv", "--pdeathsig", "KILL", *node.inside, "unshare", "--uts", "--mount", "--pid", "--fork",
            "--mount-proc", "--kill-child", "sh", "-c", MACHINE, str(self._own), str(temporary),
            "ray", "start", "--block", "--node-ip-address", node.address, "--object-store-memory", str(OBJECTS),
            "--disable-usage-stats", *options]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the node, without waiting for it."""
        ip("-n", self.node.name, "link", "set", "eth0", "up")
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(self._command, env=self._environment, stdin=subprocess.DEVNULL,
                                             stdout=out, stderr=out)

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def said(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def runs(self, *titles: str) -> int:
        """Returns the number of processes on this node whose title contains one of `titles`."""
        found = subprocess.run(["ip", "netns", "pids", self.node.name], capture_output=True, text=True, check=True)
        commands = [Path("/proc", pid, "cmdline") for pid in found.stdout.split()]
        return sum(any(title in command.read_text() for title in titles) for command in commands if command.exists())

    def cut(self) -> None:
        """Takes the node off the network and then kills it, as a power cut does: no other node gets a last packet."""
        ip("-n", self.node.name, "link", "set", "eth0", "down")
        self.kill()

    def wait(self, seconds: float) -> None:
        """Waits until the node has ended by itself. Raises TimeoutExpired."""
        if self._process is not None:
            self._process.wait(seconds)

    def kill(self) -> None:
        """Ends all processes of the node at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
