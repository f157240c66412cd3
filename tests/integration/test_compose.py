"""The compose file, started by podman-compose: Redis, environment server and trainer play a short run to its end.

The environment server is in its image, with the code of this checkout. Redis and the trainer run the commands, users,
networks, mounts and limits of the file, in a container that has this machine's /usr and Python environment in place of
the trainer's image, which is too large to be built for a test.
"""

from __future__ import annotations

import os
import resource
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from waiting import wait_until

from services.process.addresses import likely_port
from services.telemetry.metrics_file import read_rows
from tests.toys.container import missing, podman
from tests.toys.nodes import why_not
from tests.toys.site_containers import container_names, remove_orphans

pytestmark = [pytest.mark.long, pytest.mark.vllm, pytest.mark.ray, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[2]
COMPOSE = Path(sys.executable).with_name("podman-compose")
PYTHON = Path(sys.prefix).resolve() / "bin" / "python"
IMAGE = "localhost/gagpo-alfworld"
DEADLINE_S = 3000.0
HOME = "/root"
"""A Python may be below it, and only root may enter that of the image."""
MACHINE = sorted({"/usr", str(PYTHON.parents[1]), sys.base_prefix, str(ROOT)})
"""Folders of this machine that have what a training process needs."""
SHORT = {
    "steps": 2, "env": {"urls": ["http://environment:8100"], "max_steps": 3},
    "model": {"layers": 1, "intermediate": 64}, "sft": {"minutes": 0.05, "demos_per_game": 1},
    "rollout": {"slots": 8, "kv_cache_gb": 0.25},
    "learner": {"groups_per_step": 2, "group_size": 2, "threads": 1},
    "eval": {"every": 0, "panel": 0, "compare_cold_start": False}}
"""Keys of the run in place of the shipped ones. Names, folders, addresses and ports stay as shipped."""


class Host:
    """A host on which somebody follows docs/tasks/compose.md, with a short run and a free port."""

    def __init__(self, folder: Path) -> None:
        self._project = f"gagpo-{os.getpid()}-compose"
        self._folder = folder / "docker" / "compose"
        for part in ("docker/compose", "kubernetes/base"):
            shutil.copytree(ROOT / "deploy" / part, folder / part)
        shipped = yaml.safe_load((self._folder / "run.yaml").read_text())
        (self._folder / "run.yaml").write_text(yaml.safe_dump({**shipped, **SHORT}))
        file = self._folder / "compose.yaml"
        file.write_text(file.read_text().replace("127.0.0.1:9464:", f"127.0.0.1:{likely_port()}:"))
        (folder / "root" / "bin").mkdir(parents=True)
        command = folder / "root" / "bin" / "gagpo"  # that of the environment may be of another checkout
        command.write_text(f'#!/bin/sh\nexec {PYTHON} -m gagpo "$@"\n')
        command.chmod(0o755)
        (self._folder / "test.yaml").write_text(yaml.safe_dump(_in_place_of_the_image(folder / "root")))
        (self._folder / ".env").write_text("GAGPO_REDIS_PASSWORD=not-a-secret\nGAGPO_ENV_TOKEN=not-a-secret-either\n")
        (self._folder / "containers.conf").write_text(_settings())
        (self._folder / "runs").mkdir()
        os.chown(self._folder / "runs", 10001, 10001)

    @property
    def run(self) -> Path:
        return self._folder / "runs" / "alfworld"

    def compose(self, *words: str) -> None:
        """Calls podman-compose. Raises AssertionError with its output if it fails."""
        done = subprocess.run(
            [COMPOSE, "--project-name", self._project, "--file", "compose.yaml", "--file", "test.yaml", *words],
            cwd=self._folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
            env={**os.environ, "CONTAINERS_CONF": str(self._folder / "containers.conf")})
        assert done.returncode == 0, done.stdout + done.stderr

    def container(self, service: str) -> str:
        return f"{self._project}_{service}_1"

    def asks_for_redis(self, service: str) -> int:
        """Returns 0 if a service finds the store by its name, 2 if not, and other numbers while it does not run."""
        return podman("exec", self.container(service), "getent", "hosts", "redis", check=False).returncode

    def wait(self) -> None:
        """Waits until the trainer has ended well. Raises AssertionError if it was started too often, or too late."""
        until, name = time.monotonic() + DEADLINE_S, self.container("trainer")
        while True:
            state, code, restarts = podman(
                "inspect", name, "--format", "{{.State.Status}} {{.State.ExitCode}} {{.RestartCount}}").stdout.split()
            if (state, code) == ("exited", "0"):
                return
            logs = podman("logs", "--tail", "60", name)
            assert time.monotonic() < until, f"{state}: {logs.stdout}{logs.stderr}"
            assert (state, restarts) != ("exited", "10"), f"{logs.stdout}{logs.stderr}"
            time.sleep(1)

    def remains(self) -> list[str]:
        """Returns the names of containers, networks and volumes of this host."""
        names = [*container_names(), *podman("volume", "ls", "--format", "{{.Name}}").stdout.split()]
        return [name for name in names if name.startswith(self._project)]


def _in_place_of_the_image(root: Path) -> dict[str, object]:
    """Returns what the test adds to the file. `root` becomes HOME."""
    trainer = {
        "image": IMAGE, "entrypoint": ["/usr/bin/env"],
        "volumes": [f"{root}:{HOME}", *(f"{folder}:{folder}:ro" for folder in MACHINE)],
        "environment": {"PATH": f"{HOME}/bin:{PYTHON.parent}:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": "/tmp",
                        "PYTHONDONTWRITEBYTECODE": "1"}}
    return {
        "services": {"redis": trainer, "trainer": trainer, "environment": {
            "environment": {"PYTHONPATH": str(ROOT)}, "volumes": [f"{ROOT}:{ROOT}:ro"]}},
        "volumes": {"store": {"driver_opts": {"o": "uid=10001,gid=10001"}}}}  # as the trainer's image has /data


def _settings() -> str:
    """Returns what podman has to be told on a machine that is a container itself, as scripts/containers tells it."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    runtime = f'[engine]\nruntime="{found}"\n' if (found := shutil.which("runc")) else ""
    return f'[containers]\ndefault_ulimits=["nofile={files}:{files}","nproc=30000:30000"]\n{runtime}'


def _cannot() -> str:
    """Returns why the file cannot be started on this machine; empty if it can."""
    if not COMPOSE.exists():
        return "podman-compose is not installed: scripts/setup --test"
    if not any(Path(folder, "aardvark-dns").exists() for folder in ("/usr/lib/podman", "/usr/libexec/podman")):
        return "aardvark-dns is not installed, so containers do not find each other by name"
    if closed := [folder for folder in MACHINE if not Path(folder).stat().st_mode & stat.S_IXOTH]:
        return f"the user of the containers may not enter {closed[0]}"
    if not Path("/lib").is_symlink():
        return "/usr of this machine does not have all of its libraries"
    return why_not() or missing("alfworld")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    if reason := _cannot():
        pytest.skip(reason)
    remove_orphans()
    before = os.umask(0o022)  # a run that a test before has opened in this process may have taken the rights of others
    made = Host(tmp_path)
    try:
        yield made
    finally:
        os.umask(before)
        made.compose("down", "--volumes", "--timeout", "5")
        assert made.remains() == []


def test_the_file_runs_a_job_to_its_end(host: Host):
    host.compose("up", "--detach")
    wait_until(lambda: host.asks_for_redis("trainer") == 0, seconds=600)  # it may be starting again
    assert host.asks_for_redis("environment") == 2, "a game reaches the store"
    host.wait()
    assert [row["step"] for row in read_rows(host.run / "metrics.jsonl")] == [1, 2]
    assert (host.run.stat().st_uid, host.run.stat().st_mode & 0o777) == (10001, 0o700)
    host.compose("run", "--rm", "--no-deps", "-T", "trainer", "gagpo", "audit", "/train/runs/alfworld")
