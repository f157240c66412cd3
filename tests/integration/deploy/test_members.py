"""The environment server as a member of a run: a real `gagpo serve-env`."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest

from deploy.members import EnvServer, free_port
from services.config_file import dump_config, load_config
from services.controller.supervise import Supervisor
from services.errors import EnvFault


@pytest.fixture
def config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    dump_config(load_config("alfworld-tiny", ()), tmp_path / "config.yaml")
    return tmp_path / "config.yaml"


@pytest.fixture
def server(config_file: Path, tmp_path: Path):
    member = EnvServer(0, free_port(), config_file, tmp_path / "server.log")
    yield member
    member.stop()


def pid_of(member: EnvServer) -> int:
    """The process that listens on the member's port."""
    port = int(member.url.rsplit(":", 1)[1])
    return next(child.pid for child in psutil.Process().children()
                if any(c.laddr.port == port for c in child.net_connections("inet")))


def test_a_server_answers_once_started_and_is_gone_once_stopped(server: EnvServer):
    server.start()
    assert server.poll() is None
    info = httpx.get(f"{server.url}/v1/info", timeout=5).json()
    assert (info["name"], info["replay"]) == ("alfworld-gen", "pure")
    pid = pid_of(server)
    server.stop()
    assert not psutil.pid_exists(pid)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/healthz", timeout=5)
    server.stop()


def test_a_killed_server_is_started_again_at_its_address(server: EnvServer):
    notes: list[str] = []
    supervisor = Supervisor(notes.append)
    supervisor.add(server)
    url, first = server.url, pid_of(server)
    os.kill(first, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while server.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    supervisor.check()
    assert server.url == url
    assert httpx.get(f"{url}/healthz", timeout=5).status_code == 200
    second = pid_of(server)
    assert second != first
    assert "environment server 0 died (exit code -9;" in notes[0]
    supervisor.stop()
    assert not psutil.pid_exists(second)


def test_a_server_that_cannot_start_says_why(config_file: Path, tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        member = EnvServer(1, taken.getsockname()[1], config_file, tmp_path / "server.log")
        with pytest.raises(EnvFault, match=r"environment server 1 ended at start: .*in use"):
            member.start()


def test_a_server_ends_with_the_process_that_started_it(config_file: Path, tmp_path: Path):
    """Killed with SIGKILL, so that nothing could be cleaned up."""
    port = free_port()
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom deploy.members import EnvServer\n"
        "EnvServer(0, int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])).start()\n"
        "print('up', flush=True)\ntime.sleep(60)\n")
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(port), str(config_file), str(tmp_path / "log")],
        stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout.readline() == "up\n"
        (child,) = psutil.Process(parent.pid).children()
    finally:
        parent.kill()
        parent.wait(10)
    child.wait(10)
