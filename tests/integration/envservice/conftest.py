import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

TOYS = Path(__file__).parents[2] / "toys"
sys.path.insert(0, str(TOYS))


class ServerProcess:
    """A toy server in a process of its own, so that it can be killed."""

    def __init__(self, *options: str, port: int = 0) -> None:
        command = [sys.executable, str(TOYS / "toy_environment.py"), "--port", str(port), *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        ready = self.process.stdout.readline()
        assert " on http://" in ready, "the server ended before it was ready"
        self.url = ready.split(" on ")[1].strip()
        self.port = int(self.url.rsplit(":", 1)[1])

    def kill(self) -> None:
        """SIGKILL: nothing is drained."""
        self.process.kill()
        self.process.wait(timeout=10)


StartServer = Callable[..., ServerProcess]


@pytest.fixture
def start() -> Iterator[StartServer]:
    """Starts servers, and kills those that are left."""
    started: list[ServerProcess] = []

    def start_one(*options: str, port: int = 0) -> ServerProcess:
        started.append(ServerProcess(*options, port=port))
        return started[-1]

    yield start_one
    for server in started:
        server.kill()
