import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ports import likely_port

TOYS = Path(__file__).parents[2] / "toys"
sys.path.insert(0, str(TOYS))


class ServerProcess:
    """A toy server in its own process, so that it can be killed."""

    def __init__(self, *options: str, port: int, descriptors: int | None = None) -> None:
        command = [sys.executable, str(TOYS / "toy_environment.py"), "--port", str(port), *options]
        self._log = tempfile.TemporaryFile("a+")  # noqa: SIM115 - ends with the server
        if descriptors is not None:
            command = ["bash", "-c", f'ulimit -n {descriptors} && exec "$@"', "bash", *command]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, text=True)
        assert self.process.stdout is not None
        ready = self.process.stdout.readline()
        assert " on http://" in ready, "the server ended before it was ready"
        self.url = ready.split(" on ")[1].strip()
        self.port = int(self.url.rsplit(":", 1)[1])

    def log(self) -> list[dict[str, Any]]:
        """Returns the lines of its stderr, all of which are JSON."""
        return [json.loads(line) for line in self.said().splitlines()]

    def said(self) -> str:
        """Returns its stderr."""
        self._log.seek(0)
        return self._log.read()

    def kill(self) -> None:
        """Kills the server with SIGKILL, so that it drains nothing."""
        self.process.kill()
        self.process.wait(timeout=60)


StartServer = Callable[..., ServerProcess]


@pytest.fixture
def start() -> Iterator[StartServer]:
    """Starts servers, each at a port that it may be given again after its end, and kills those that are left."""
    started: list[ServerProcess] = []

    def start_one(*options: str, port: int | None = None, descriptors: int | None = None) -> ServerProcess:
        started.append(ServerProcess(*options, port=port or likely_port(), descriptors=descriptors))
        return started[-1]

    yield start_one
    for server in started:
        server.kill()
