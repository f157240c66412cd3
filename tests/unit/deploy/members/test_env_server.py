"""A local server is found under any proxy variables."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from ports import likely_port, needs_ipv6

from deploy.launch.checks import preflight, servers
from deploy.launch.planning import machine
from deploy.members.env_server import EnvServer, answers
from deploy.runs.configs import load_config
from envservice.wire import Info
from services.amounts import GIB
from services.config.file import dump_config
from services.config.secrets import ENV_TOKEN_VARIABLE
from services.errors import UserError

CONTAINERFILE = Path(preflight.__file__).parents[2] / "docker" / "Containerfile"


class Answer(BaseHTTPRequestHandler):
    """200 at /healthz, what a server of the toy plays at /v1/info, for one token; 503 elsewhere."""

    def do_GET(self) -> None:
        body, status = b"", 200 if self.path == "/healthz" else 503
        if self.path == "/v1/info":
            status = 200 if self.headers["authorization"] == "Bearer secret" else 401
            body = Info(name="toy", engine="corridor", version="1", replay="pure", splits={}).model_dump_json().encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Yields the port of a server on this machine, while environment variables name a proxy that does not exist."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{likely_port()}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join(timeout=60)


def test_only_status_200_counts_as_an_answer(port: int):
    assert answers(f"http://127.0.0.1:{port}/healthz")
    assert not answers(f"http://127.0.0.1:{port}/elsewhere")
    assert not answers(f"http://127.0.0.1:{likely_port()}/healthz")


@needs_ipv6
def test_a_server_at_an_address_of_ipv6_is_started_and_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    dump_config(load_config("alfworld-tiny"), tmp_path / "config.yaml")
    server = EnvServer(0, likely_port("::1"), tmp_path / "config.yaml", tmp_path, host="::1")
    server.start()
    try:
        server.wait()
        assert server.ready()
        assert server.url.startswith("http://[::1]:")
    finally:
        server.stop()


def test_preflight_finds_a_server_past_the_proxy(port: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "cpu_count", lambda: 2.0)
    monkeypatch.setattr(machine, "available_memory", lambda: 16 * GIB)
    preflight.check_parts(load_config("alfworld-tiny", [f"env.urls=[http://127.0.0.1:{port}]", "redis.url=null"]))


def test_the_health_check_of_images_asks_past_the_proxy(port: int):
    (command,) = re.findall(r"^HEALTHCHECK (?:.*\\\n)?\s*CMD (.*)$", CONTAINERFILE.read_text(), re.MULTILINE)
    _, option, program = json.loads(command)
    for asked, status in ((port, 0), (likely_port(), 1)):
        done = subprocess.run([sys.executable, option, program.replace("8100", str(asked))], env=os.environ,
                              capture_output=True, timeout=60, check=False)
        assert done.returncode == status, done.stderr


def test_servers_that_play_another_version_than_results_would_name_are_refused(port: int):
    url = f"http://127.0.0.1:{port}"

    def refusal(where: str = url, *, engine: str = "corridor 1", token: str | None = "secret") -> str:
        with pytest.raises(UserError) as error:
            servers.check_versions([where], env="toy", engine=engine, token=token)
        return str(error.value)

    assert refusal(token=None) == (
        f"{url} asks for another token; set {ENV_TOKEN_VARIABLE} or env.token_file to the server's token")
    servers.check_versions([url], env="toy", engine="corridor 1", token="secret")
    assert refusal(engine="corridor 2") == (
        f"{url} plays toy by corridor 1, and this config toy by corridor 2; "
        "give both the same data, settings and packages")
    assert refusal(f"{url}/elsewhere").startswith(f"{url}/elsewhere does not say what it plays (HTTPStatusError: ")
    assert refusal(f"http://127.0.0.1:{likely_port()}").endswith("start it with `gagpo serve-env` of this version")
