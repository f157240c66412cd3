"""The containers of a rehearsal: a Redis, and environment servers in any number, on a network of their own."""

from __future__ import annotations

import os
import secrets
import subprocess
from pathlib import Path

from services.store.redis_server import find_redis
from tests.toys.container import SCRIPT, podman
from tests.toys.nodes import orphaned

ROOT = Path(__file__).parents[2]
REDIS, FIRST_SERVER = 100, 110
"""Last numbers of the addresses of Redis and of the first environment server. Nodes begin at 10."""
GAMES = "tests.toys.slow_alfworld"
REDIS_CONF = """
bind 0.0.0.0
requirepass {password}
dir /data
appendonly yes
appendfsync everysec
save ""
maxmemory 512mb
maxmemory-policy noeviction
"""


class Containers:
    """Redis, and environment servers in any number."""

    def __init__(self, folder: Path, *, step_s: float) -> None:
        self.network = f"gagpo-{os.getpid()}"
        self.token = secrets.token_urlsafe(16)
        self._folder, self._step_s = folder, step_s
        podman("network", "create", "--disable-dns", self.network)
        self.subnet, self.bridge = podman(  # podman takes a subnet that is free, such as 10.89.0.0/24
            "network", "inspect", self.network, "--format",
            "{{(index .Subnets 0).Subnet}} {{.NetworkInterface}}").stdout.replace(".0/24", "").split()

    def start_redis(self) -> str:
        """Starts the bundled server in the image of an environment server, which has the C library that it needs.

        Returns its password.
        """
        data, settings, password = self._folder / "redis-data", self._folder / "redis.conf", secrets.token_urlsafe(16)
        data.mkdir()
        settings.touch(mode=0o600)
        settings.write_text(REDIS_CONF.format(password=password))
        for path in (data, settings):
            os.chown(path, 10001, 10001)
        self._run("redis", "--ip", self.address(REDIS), "--volume", f"{data}:/data",
                  "--volume", f"{settings}:/etc/redis.conf:ro",
                  "--volume", f"{find_redis()}:/usr/local/bin/redis-server:ro",
                  "--entrypoint", '["/usr/local/bin/redis-server", "/etc/redis.conf"]')
        return password

    def start_server(self, index: int) -> str:
        """Starts an environment server. Returns its container."""
        games = f"{GAMES.replace('.', '/')}.py"
        return self._run(
            f"environment-{index}", "--ip", self.address(FIRST_SERVER + index), "--env", f"FAMILY={GAMES}:SPEC",
            "--env", "PYTHONPATH=/opt/own", "--env", f"SLOW_STEP_S={self._step_s}",
            "--volume", f"{ROOT / games}:/opt/own/{games}:ro", "--", "--config", "alfworld-tiny")

    def _run(self, name: str, *options: str) -> str:
        done = subprocess.run(
            [SCRIPT, "run", "alfworld", "--name", f"{self.network}-{name}", "--network", self.network, *options],
            env={**os.environ, "GAGPO_ENV_TOKEN": self.token}, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()[-1]

    def address(self, last: int) -> str:
        return f"{self.subnet}.{last}"

    def remove(self) -> None:
        """Ends all containers and removes their network."""
        found = podman("ps", "--all", "--quiet", "--filter", f"name=^{self.network}-").stdout.split()
        if found:
            podman("rm", "--force", "--time", "0", *found)
        podman("network", "rm", "--force", self.network)


def remove_orphans() -> None:
    """Removes the containers and networks of processes that are gone."""
    for name in filter(orphaned, _names("ps", "--all")):
        podman("rm", "--force", "--time", "0", name)
    for name in filter(orphaned, _names("network", "ls")):
        podman("network", "rm", "--force", name)


def container_names() -> list[str]:
    """Returns the names of all containers and their networks on this machine."""
    return [*_names("ps", "--all"), *_names("network", "ls")]


def _names(*words: str) -> list[str]:
    form = "{{.Names}}" if words[0] == "ps" else "{{.Name}}"
    return podman(*words, "--format", form).stdout.split()
