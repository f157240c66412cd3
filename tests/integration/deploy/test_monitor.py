"""`gagpo monitor` as a process, with a real Prometheus over the endpoint of a run."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from deploy.launch.monitoring import target_groups
from deploy.monitor.servers import DASHBOARDS, SHIPPED, grafana, prometheus
from deploy.runs.folder import targets_folder
from services.errors import UserError
from services.telemetry.exposition import serving
from services.telemetry.heartbeat import Heartbeat, decode

needs_prometheus = pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")
START_S = 60.0


def until(found: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + START_S
    while not (seen := found()):
        assert time.monotonic() < deadline, f"no {what} in {START_S:.0f} s"
        time.sleep(0.2)
    return seen


def ask(url: str, what: str, **query: str) -> dict[str, Any]:
    return httpx.get(f"{url}/api/v1/{what}", params=query, timeout=60).json()["data"]


def start(runs_dir: Path, out: Path) -> subprocess.Popen[bytes]:
    with out.open("wb") as file:
        return subprocess.Popen([sys.executable, "-m", "deploy.cli", "monitor", str(runs_dir), "--port", "0"],
                                stdout=file, stderr=file, start_new_session=True,
                                env={**os.environ, "GAGPO_ENV_TOKEN": "secret"})


@needs_prometheus
def test_a_run_is_found_and_scraped_until_ctrl_c(tmp_path: Path):
    heartbeat, runs_dir, out = Heartbeat("controller", "controller"), tmp_path / "runs", tmp_path / "out"
    heartbeat.meters("gagpo_controller_capacity_groups").set(3)
    with serving(lambda: decode({"controller": heartbeat.beat()}), host="127.0.0.1", port=0) as address:
        targets_folder(runs_dir).mkdir(parents=True)
        (targets_folder(runs_dir) / "mine.json").write_text(json.dumps(target_groups("mine", address, [])))
        process = start(runs_dir, out)
        try:
            url = until(lambda: re.search(r"^Prometheus: (\S+)$", out.read_text(), re.MULTILINE), "address")[1]
            (series,) = until(lambda: ask(url, "query", query="gagpo_controller_capacity_groups")["result"], "series")
            assert (series["metric"]["run"], series["metric"]["worker"]) == ("mine", "controller")
            assert series["value"][1] == "3"
            (rules,) = [group["rules"] for group in ask(url, "rules")["groups"]]
            assert {rule["health"] for rule in rules} <= {"ok", "unknown"}
            declared = yaml.safe_load((SHIPPED / "rules.yml").read_text())["groups"][0]["rules"]
            assert [rule["name"] for rule in rules] == [rule["alert"] for rule in declared]
            (child,) = psutil.Process(process.pid).children(recursive=True)
            assert (runs_dir / ".monitor" / "token").stat().st_mode & 0o777 == 0o600
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(120) == 0, out.read_text()
            assert "error" not in out.read_text()
            assert not child.is_running()
        finally:
            process.kill()


@needs_prometheus
def test_a_port_that_is_taken_is_the_users_to_change(tmp_path: Path):
    with serving(dict, host="127.0.0.1", port=0) as address:
        done = subprocess.run([sys.executable, "-m", "deploy.cli", "monitor", str(tmp_path), "--port",
                               address.rpartition(":")[2]], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"error: port \d+ is taken; choose another --port, or 0 for a free one\n", done.stderr)


@needs_prometheus
def test_a_folder_has_one_monitor_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GAGPO_ENV_TOKEN", "secret")
    runs_dir = tmp_path / "runs"
    with prometheus(runs_dir, port=0) as first:
        kept = {path.name: path.read_bytes() for path in (runs_dir / ".monitor").glob("[!.]*") if path.is_file()}
        monkeypatch.delenv("GAGPO_ENV_TOKEN")
        done = subprocess.run([sys.executable, "-m", "deploy.cli", "monitor", str(runs_dir), "--port", "0"],
                              capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"error: another gagpo monitor watches {runs_dir}; use that one, or end it first\n"
        assert {name: (runs_dir / ".monitor" / name).read_bytes() for name in kept} == kept
        assert httpx.get(f"{first}/-/ready", timeout=60).is_success
    with prometheus(runs_dir, port=0):
        assert not (runs_dir / ".monitor" / "token").exists()


GRAFANA = """#!{python}
import json, os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/api/health" else 404)
        self.end_headers()
        self.wfile.write(json.dumps([sys.argv[1:], dict(os.environ)]).encode())

HTTPServer((os.environ["GF_SERVER_HTTP_ADDR"], int(os.environ["GF_SERVER_HTTP_PORT"])), Health).serve_forever()
"""
"""Stands in for the program, of which no package is at hand: it starts, answers that it is well, tells what it was
given, and is ended."""


def test_grafana_is_given_prometheus_and_the_boards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program = tmp_path / "release" / "bin" / "grafana-server"
    program.parent.mkdir(parents=True)
    program.write_text(GRAFANA.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    (tmp_path / ".monitor").mkdir()
    with grafana(tmp_path, "http://127.0.0.1:9090", port=0) as url:
        arguments, given = httpx.get(f"{url}/api/health", timeout=60).json()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/api/health", timeout=60)
    assert arguments[0] == "--homepath"
    places = {}
    for kind in ("datasources", "dashboards"):
        text = (Path(given["GF_PATHS_PROVISIONING"]) / kind / "gagpo.yml").read_text()
        places |= {name: given[name] for name in re.findall(r"\$(\w+)", text)}
    assert places == {"GAGPO_PROMETHEUS": "http://127.0.0.1:9090", "GAGPO_DASHBOARDS": str(DASHBOARDS)}
    assert Path(given["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]).is_file()


def test_where_grafana_is_not_installed_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with grafana(tmp_path, "http://127.0.0.1:9090", port=0) as url:
        assert url is None


def test_without_prometheus_it_is_the_users_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="apt-get install prometheus"), prometheus(tmp_path / "runs", port=0):
        pass
    assert not (tmp_path / "runs").exists()
