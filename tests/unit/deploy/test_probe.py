"""Whether a local server answers, whatever proxies the environment names."""

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

from deploy import machine, preflight
from deploy.members import free_port
from deploy.probe import answers
from services.config_file import load_config

CONTAINERFILE = Path(preflight.__file__).parent / "docker" / "Containerfile"


class Answer(BaseHTTPRequestHandler):
    """200 at /healthz, 503 elsewhere."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthz" else 503)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Of a server on this machine, and a proxy in the environment that is not there."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join(timeout=10)


def test_only_200_is_an_answer(port: int):
    assert answers(f"http://127.0.0.1:{port}/healthz")
    assert not answers(f"http://127.0.0.1:{port}/elsewhere")
    assert not answers(f"http://127.0.0.1:{free_port()}/healthz")


def test_preflight_finds_a_server_past_the_proxy(port: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "cpu_count", lambda: 2.0)
    monkeypatch.setattr(machine, "available_memory", lambda: 16 * machine.GIB)
    preflight.check_parts(load_config("alfworld-tiny", [f"env.urls=[http://127.0.0.1:{port}]", "redis.url=null"]))


def test_the_health_check_of_images_asks_past_the_proxy(port: int):
    (command,) = re.findall(r"^HEALTHCHECK (?:.*\\\n)?\s*CMD (.*)$", CONTAINERFILE.read_text(), re.MULTILINE)
    _, option, program = json.loads(command)
    for asked, status in ((port, 0), (free_port(), 1)):
        done = subprocess.run([sys.executable, option, program.replace("8100", str(asked))], env=os.environ,
                              capture_output=True, timeout=60, check=False)
        assert done.returncode == status, done.stderr
