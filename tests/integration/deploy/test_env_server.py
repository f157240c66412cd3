"""The environment server as a process of a run: a real `gagpo serve-env`."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from waiting import wait_until

from deploy.launch.checks import servers
from deploy.members.env_server import EnvServer
from deploy.runs.configs import load_config
from services.config.file import dump_config
from services.config.sections import SupervisionSection
from services.controller.member import End
from services.controller.supervise import Supervisor
from services.errors import EnvFault, Fault, UserError
from services.process.addresses import held_port
from services.telemetry.logs import configure_logs


@pytest.fixture
def config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    dump_config(load_config("alfworld-tiny", ()), tmp_path / "config.yaml")
    return tmp_path / "config.yaml"


@pytest.fixture
def server(config_file: Path, tmp_path: Path):
    member = EnvServer(0, held_port(), config_file, tmp_path)
    yield member
    member.stop()


@pytest.fixture
def events(tmp_path: Path) -> Callable[[], list[dict[str, Any]]]:
    """Returns the present lines of log.jsonl. The log of this process goes there too, as the driver's does."""
    configure_logs(tmp_path, show=None)
    return lambda: [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]


def pid_of(member: EnvServer) -> int:
    """Returns the process that listens on the member's port."""
    port = int(member.url.rsplit(":", 1)[1])
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if any(c.laddr.port == port for c in child.net_connections("inet")):
                return child.pid
    raise AssertionError(f"no child listens on {port}")


def test_a_server_answers_once_started_and_is_gone_once_stopped(server: EnvServer):
    assert not server.ready()
    server.start()
    server.wait()
    assert server.ready()
    assert server.poll() is None
    info = httpx.get(f"{server.url}/v1/info", timeout=60).json()
    assert (info["name"], info["replay"]) == ("alfworld-gen", "pure")
    servers.check_versions([server.url], env="alfworld-gen", engine="own 1")
    with pytest.raises(UserError, match="plays alfworld-gen by own 1, and this config alfworld-gen by textworld"):
        servers.check_versions([server.url], env="alfworld-gen", engine="textworld 1.6")
    pid = pid_of(server)
    server.stop()
    assert not psutil.pid_exists(pid)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/healthz", timeout=60)
    server.stop()


def test_a_server_of_a_run_asks_for_a_token_that_no_process_list_shows(config_file: Path, tmp_path: Path):
    member = EnvServer(0, held_port(), config_file, tmp_path, "random-token")
    try:
        member.start()
        member.wait()
        assert httpx.get(f"{member.url}/v1/info", timeout=60).status_code == 401
        right = {"authorization": "Bearer random-token"}
        assert httpx.get(f"{member.url}/v1/info", headers=right, timeout=60).status_code == 200
        assert httpx.get(f"{member.url}/metrics", timeout=60).status_code == 200, "Prometheus knows no run's token"
        assert not any("random-token" in word for word in psutil.Process(pid_of(member)).cmdline())
        assert Path(f"/proc/{pid_of(member)}/environ").stat().st_mode & 0o077 == 0
    finally:
        member.stop()
    assert "random-token" not in (tmp_path / "log.jsonl").read_text()


def test_a_server_is_found_past_the_proxies_of_the_environment(server: EnvServer, monkeypatch: pytest.MonkeyPatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{held_port()}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server.start()
    server.wait()
    assert server.poll() is None


def test_servers_tell_the_run_s_log_what_they_do(config_file: Path, tmp_path: Path, events):
    servers = [EnvServer(rank, held_port(), config_file, tmp_path) for rank in range(2)]
    try:
        for server in servers:
            server.start()
        for server in servers:
            server.wait()
    finally:
        for server in servers:
            server.stop()
    for rank, server in enumerate(servers):
        log = [event for event in events() if event["process"] == f"environment-{rank}"]
        assert [event["event"] for event in log] == ["started", "serving", "draining", "drained"]
        assert {(event["run"], event["role"], event["rank"]) for event in log} == {(tmp_path.name, "environment", rank)}
        assert log[1]["url"] == server.url
    assert len(events()) == 8, "nothing was said on stderr"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml", "log.jsonl"]


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EnvServer:
    """A server whose environment loads for a second and then fails."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "broken_environment.py").write_text(
        "import sys, time\nfrom envservice.spec import EnvironmentSpec\n\n"
        "def explode(env):\n    print('the last straw', file=sys.stderr)\n    time.sleep(1)\n"
        "    raise RuntimeError('no such dragon')\n\n"
        "SPEC = EnvironmentSpec(open=explode, prompts={}, describe=str)\n")
    dump_config(load_config("alfworld-tiny", ["env.name=broken_environment:SPEC"]), tmp_path / "config.yaml")
    return EnvServer(0, held_port(), tmp_path / "config.yaml", tmp_path)


def test_the_error_that_ends_a_server_is_in_the_runs_log_with_its_place(broken: EnvServer, events):
    broken.start()
    with pytest.raises(EnvFault, match="server 0 ended at start: exit code 2; error: the environment broken"):
        broken.wait()
    heard = [(event["process"], event["child"], event["line"]) for event in events() if event["event"] == "on stderr"]
    assert heard[0] == ("controller", "environment server 0", "the last straw")
    assert "RuntimeError: no such dragon (in explode, broken_environment.py:" in heard[-1][2]


def test_a_killed_server_is_started_again_at_its_address(server: EnvServer):
    notes: list[str] = []
    supervisor = Supervisor(notes.append, SupervisionSection())
    supervisor.add(server)
    supervisor.wait("environment")
    url, first = server.url, pid_of(server)
    os.kill(first, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while server.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    supervisor.check()
    assert supervisor.waits
    supervisor.wait("environment")
    assert server.url == url
    assert httpx.get(f"{url}/healthz", timeout=60).status_code == 200
    second = pid_of(server)
    assert second != first
    assert notes[0].startswith("environment server 0 died (killed by SIGKILL, as the kernel does when memory is short: "
                               "env.memory_gb lowers its memory; ")
    supervisor.stop()
    assert not psutil.pid_exists(second)


def test_a_server_that_leaves_ends_while_the_controller_goes_on(server: EnvServer, monkeypatch):
    """No `stop` waits for it: to finish its requests it may take seconds."""
    monkeypatch.setattr("deploy.members.env_server.HANDOVER_S", 0.0)
    server.start()
    server.wait()
    leaving = pid_of(server)
    server.drain()
    wait_until(lambda: server.poll() is not None)
    assert server.poll() == End("")
    assert not psutil.pid_exists(leaving)


def test_a_server_that_cannot_start_says_why(config_file: Path, tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        member = EnvServer(1, taken.getsockname()[1], config_file, tmp_path)
        member.start()
        with pytest.raises(EnvFault, match=r"environment server 1 ended at start: .*in use"):
            member.wait()


def test_a_server_whose_environment_fails_while_it_loads_was_never_ready_and_ends_the_run(broken: EnvServer):
    notes: list[str] = []
    supervisor = Supervisor(notes.append, SupervisionSection())
    supervisor.add(broken)
    try:
        with pytest.raises(Fault, match=r"server 0 cannot start, it failed twice in the same way: .*no such dragon"):
            supervisor.wait("environment")
    finally:
        supervisor.stop()
    assert len(notes) == 1


def test_a_server_ends_with_the_process_that_started_it(config_file: Path, tmp_path: Path):
    """The process is killed with SIGKILL, so it cannot clean up."""
    port = held_port()
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom deploy.members.env_server import EnvServer\n"
        "server = EnvServer(0, int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))\nserver.start()\nserver.wait()\n"
        "print('up', flush=True)\ntime.sleep(600)\n")
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(port), str(config_file), str(tmp_path)],
        stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout.readline() == "up\n"
        (child,) = psutil.Process(parent.pid).children()
    finally:
        parent.kill()
        parent.wait(60)
    child.wait(60)
