"""scripts/audit asks a service about every locked package, and never takes silence for safety."""

import json
import os
import subprocess
import sys
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
    thread.join(60)


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
    assert done.stdout.endswith(": 2 packages of lock-x.txt; 0 with vulnerabilities known\n")
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
    assert "1 with vulnerabilities known" in done.stdout


def test_an_audit_without_a_whole_answer_does_not_pass(osv: Osv, audit, tmp_path: Path):
    osv.most = 1
    short = audit()
    away = audit("http://127.0.0.1:1")
    missing = audit("http://127.0.0.1:1", tmp_path / "none.txt")
    for done, said in ((short, "answered 1 of 2"), (away, "Connection refused"), (missing, "none.txt")):
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert said in done.stderr


ENTRY = """id: PYSEC-{number}
modified: "2026-0{number}-01T00:00:00Z"
affected:
- package: {{ecosystem: PyPI, name: {name}}}
  ranges:
  - type: ECOSYSTEM
    events: [{{introduced: "0"}}, {{fixed: {fixed}}}]
  versions: [{listed}]
{more}
"""


def from_folder(folder: Path, lock: Path):
    return subprocess.run([sys.executable, ROOT / "scripts/audit", "--database", folder, lock], capture_output=True,
                          text=True, timeout=60, check=False, env=os.environ | {"OSV_URL": "http://127.0.0.1:1"})


def test_a_clone_of_the_database_is_asked_without_a_network(tmp_path: Path):
    """Entry 1 is fixed in the version that is locked, 2 is not, 3 lists it by name, 4 was withdrawn."""
    (tmp_path / "lock-x.txt").write_text(LOCK)
    entries = [("redis", "8.1.0", "1.0", ""), ("redis", "8.2", "1.0", ""), ("Torch", "2.0", "2.13.0", ""),
               ("redis", "9.0", "8.1.0", "withdrawn: 2026-01-01T00:00:00Z")]
    for number, (name, fixed, listed, more) in enumerate(entries, 1):
        (file := tmp_path / "vulns" / name / f"{number}.yaml").parent.mkdir(parents=True, exist_ok=True)
        file.write_text(ENTRY.format(number=number, name=name, fixed=fixed, listed=listed, more=more))
    done = from_folder(tmp_path, tmp_path / "lock-x.txt")
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[:2] == [
        "redis 8.1.0: https://osv.dev/PYSEC-2", "torch 2.13.0: https://osv.dev/PYSEC-3"]
    assert done.stdout.endswith(
        "2 with vulnerabilities known to a database whose newest entry is of 2026-04-01\n")


def test_a_clone_that_names_ranges_is_asked_too(tmp_path: Path):
    (tmp_path / "lock-x.txt").write_text(LOCK)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "insecure.json").write_text(json.dumps(
        {"$meta": {"timestamp": 1775023247}, "redis": ["<8.1.0", ">=8,<9"], "Torch": ["<2.0"]}))
    done = from_folder(tmp_path, tmp_path / "lock-x.txt")
    assert (done.returncode, done.stdout.splitlines()[0]) == (1, "redis 8.1.0: >=8,<9"), done.stderr
    assert done.stdout.endswith("1 with vulnerabilities known to a database whose newest entry is of 2026-04-01\n")


def test_a_folder_that_is_not_a_database_never_counts_as_clean(tmp_path: Path):
    (tmp_path / "lock-x.txt").write_text(LOCK)
    done = from_folder(tmp_path, tmp_path / "lock-x.txt")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
