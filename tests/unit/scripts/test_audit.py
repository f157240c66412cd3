"""scripts/audit asks a service about every locked package, and never takes silence for safety."""

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
LOCK = """# Written by scripts/lock for Python 3.11 on Linux x86-64.
redis==8.1.0 --hash=sha256:00
torch==2.13.0+cpu --hash=sha256:00
"""
Answer = Callable[[dict[str, Any]], dict[str, Any]]


class Osv:
    """The part of OSV's API that is used. `answer` turns a query into its result."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.answer: Answer = lambda _query: {}
        osv = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                queries = json.loads(self.rfile.read(int(self.headers["content-length"])))["queries"]
                osv.asked += queries
                body = json.dumps({"results": [osv.answer(query) for query in queries][: osv.most]}).encode()
                self.send_response(200 if self.path == "/v1/querybatch" else 404)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.most: int | None = None
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)


@pytest.fixture
def osv() -> Iterator[Osv]:
    made = Osv()
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join(10)


@pytest.fixture
def audit(osv: Osv, tmp_path: Path):
    (tmp_path / "lock-x.txt").write_text(LOCK)

    def run(url: str = f"http://127.0.0.1:{osv.server.server_port}", *locks: object):
        return subprocess.run(
            [ROOT / "scripts/audit", *map(str, locks or [tmp_path / "lock-x.txt"])], capture_output=True, text=True,
            timeout=60, check=False, env=os.environ | {"OSV_URL": url, "no_proxy": "*"})

    return run


def test_every_package_is_asked_for_by_its_version_alone(osv: Osv, audit):
    done = audit()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(": 2 packages of lock-x.txt; 0 with known vulnerabilities\n")
    assert [(one["package"], one["version"]) for one in osv.asked] == [
        ({"name": "redis", "ecosystem": "PyPI"}, "8.1.0"), ({"name": "torch", "ecosystem": "PyPI"}, "2.13.0")]


def test_a_known_vulnerability_is_named_and_the_status_is_1(osv: Osv, audit):
    """The second page of an answer counts too."""
    def answer(query: dict[str, Any]) -> dict[str, Any]:
        if query["package"]["name"] != "redis":
            return {}
        return {"vulns": [{"id": "PYSEC-1"}]} if "page_token" in query else {
            "vulns": [{"id": "GHSA-2"}], "next_page_token": "more"}

    osv.answer = answer
    done = audit()
    assert done.returncode == 1
    assert done.stdout.splitlines()[0] == "redis 8.1.0: https://osv.dev/GHSA-2, https://osv.dev/PYSEC-1"
    assert "1 with known vulnerabilities" in done.stdout


def test_no_answer_is_no_clean_bill(osv: Osv, audit, tmp_path: Path):
    osv.most = 1
    short = audit()
    away = audit("http://127.0.0.1:1")
    missing = audit("http://127.0.0.1:1", tmp_path / "none.txt")
    for done, said in ((short, "answered 1 of 2"), (away, "Connection refused"), (missing, "none.txt")):
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert said in done.stderr
