"""Containers of the environments' images, as `scripts/containers run` starts them, on a network without other
access."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import httpx

SCRIPT = Path(__file__).parents[2] / "scripts" / "containers"
TOKEN = "not-a-secret"
HEADERS = {"authorization": f"Bearer {TOKEN}"}
READY_S = 120.0


def podman(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["podman", *arguments], capture_output=True, text=True, timeout=120, check=False,
                          cwd=tempfile.gettempdir())  # where conmon may leave a note
    assert not check or done.returncode == 0, f"podman {' '.join(arguments)}: {done.stderr}"
    return done


@lru_cache
def missing(family: str) -> str:
    """Returns why no container can be started; empty if one can."""
    if shutil.which("podman") is None:
        return "podman is not installed"
    if podman("image", "exists", f"localhost/gagpo-{family}", check=False).returncode:
        return f"there is no image gagpo-{family}: scripts/containers build {family}"
    return ""


class Container:
    """One container, from before its server is ready."""

    def __init__(self, family: str, network: str, options: tuple[str, ...], arguments: tuple[str, ...]) -> None:
        self.family = family
        command = [str(SCRIPT), "run", family, "--network", network, *options, "--", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False,
                              env={**os.environ, "GAGPO_ENV_TOKEN": TOKEN})
        assert done.returncode == 0, done.stderr
        self.id = done.stdout.split()[-1]
        address = self.inspect(f'{{{{(index .NetworkSettings.Networks "{network}").IPAddress}}}}')
        self.url = f"http://{address}:8100"

    def inspect(self, form: str) -> str:
        return podman("inspect", self.id, "--format", form).stdout.strip()

    def inside(self, *command: str) -> subprocess.CompletedProcess[str]:
        return podman("exec", self.id, *command, check=False)

    def logs(self) -> str:
        done = podman("logs", self.id)
        return done.stdout + done.stderr

    def wait(self) -> None:
        """Waits until the server answers."""
        until = time.monotonic() + READY_S
        while time.monotonic() < until:
            try:
                if httpx.get(f"{self.url}/healthz", timeout=2, trust_env=False).status_code == 200:
                    return
            except httpx.HTTPError:
                assert self.inspect("{{.State.Running}}") == "true", self.logs()
                time.sleep(0.2)
        raise AssertionError(f"not ready: {self.logs()}")


@contextmanager
def running(family: str, *options: str, arguments: tuple[str, ...] = ()) -> Iterator[Container]:
    """Yields a container that answers. Removes it and its network at the end."""
    network = f"gagpo-test-{uuid.uuid4().hex[:8]}"
    podman("network", "create", "--internal", network)
    container = None
    try:
        container = Container(family, network, options, arguments)
        container.wait()
        yield container
    finally:
        if container is not None:
            podman("rm", "--force", "--time", "0", container.id)
        podman("network", "rm", network)
