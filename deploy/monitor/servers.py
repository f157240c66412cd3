"""Runs Prometheus and Grafana over a folder of runs, with the configuration in deploy/prometheus.

Prometheus scrapes the endpoints that runs list in `.monitor/targets/`. Grafana is provisioned with that Prometheus and
our dashboards. The data of both is in `.monitor/`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

from deploy.launch.planning.machine import port_is_free
from deploy.members.env_server import POLL_S, answers
from deploy.runs.folder import targets_folder
from services.config.secrets import ENV_TOKEN_VARIABLE, token_from
from services.errors import DeadlineExceeded, Fault, UserError
from services.files import lock_alone
from services.process.addresses import likely_port
from services.process.child_processes import ending_with_parent, wait_or_kill

HOST = "127.0.0.1"
SHIPPED = Path(__file__).parents[1] / "prometheus"
"""Folder of the rules, and of Grafana's provisioning and dashboards."""
DASHBOARDS = SHIPPED / "grafana" / "dashboards"
READY_S, STOP_S = 60.0, 20.0
"""Seconds in which a server must answer after its start, and exit after SIGTERM."""


def prometheus_config(runs_dir: Path, *, ray: Path | None, token: Path | None) -> str:
    """Returns deploy/prometheus/prometheus.yml with the paths of this machine.

    `ray`: discovery file of the Ray head. None: Ray is not scraped. `token`: file with the environment servers' token.
    """
    config = yaml.safe_load((SHIPPED / "prometheus.yml").read_text(encoding="utf-8"))
    config["rule_files"] = [str((SHIPPED / "rules.yml").absolute())]
    runs, head = config["scrape_configs"]
    runs["file_sd_configs"][0]["files"] = [str(targets_folder(runs_dir).absolute() / "*.json")]
    if token is not None:
        runs["authorization"] = {"credentials_file": str(token.absolute())}
    if ray is None:
        config["scrape_configs"] = [runs]
    else:
        head["file_sd_configs"][0]["files"] = [str(ray.absolute())]
    return yaml.safe_dump(config, sort_keys=False)


@contextmanager
def prometheus(runs_dir: Path, *, port: int, ray: Path | None = None) -> Iterator[str]:
    """Runs Prometheus until the block ends. Yields its URL.

    Raises UserError if it is not installed, the port is taken, or another `gagpo monitor` watches the folder.
    """
    port = _choose_port(port, "--port")
    binary = shutil.which("prometheus")
    if binary is None:
        raise UserError("there is no prometheus on the PATH", "apt-get install prometheus, or unpack a release of it")
    home = runs_dir / ".monitor"
    for folder in (targets_folder(runs_dir), home / "prometheus"):
        folder.mkdir(parents=True, exist_ok=True)
    # Two Prometheus corrupt their data in one folder, and Debian's takes no lock of its own.
    with (home / "lock").open("w", encoding="utf-8") as lock:
        lock_alone(lock, home, elsewhere="watch a folder on storage with flock",
                   taken=UserError(f"another gagpo monitor watches {runs_dir}", "use that one, or end it first"))
        token = _write_secret(home / "token", token_from(ENV_TOKEN_VARIABLE))
        config = home / "prometheus.yml"
        config.write_text(prometheus_config(runs_dir, ray=ray, token=token), encoding="utf-8")
        command = [binary, f"--config.file={config}", f"--storage.tsdb.path={home / 'prometheus'}",
                   f"--web.listen-address={HOST}:{port}", "--log.level=warn"]
        with _child("Prometheus", command, home / "prometheus.log", ready=f"http://{HOST}:{port}/-/ready"):
            yield f"http://{HOST}:{port}"


@contextmanager
def grafana(runs_dir: Path, source: str, *, port: int) -> Iterator[str | None]:
    """Runs Grafana over the Prometheus at `source` until the block ends. Yields its URL, or None if not installed."""
    command = _grafana_command()
    if command is None:
        yield None
        return
    home = runs_dir.absolute() / ".monitor"
    port = _choose_port(port, "--grafana-port")
    settings = {
        "GF_PATHS_DATA": str(home / "grafana"), "GF_PATHS_PROVISIONING": str(SHIPPED / "grafana" / "provisioning"),
        "GF_SERVER_HTTP_ADDR": HOST, "GF_SERVER_HTTP_PORT": str(port), "GF_LOG_MODE": "console",
        # Everybody on this machine may look. Nobody can log in, because Grafana's first password is public.
        "GF_AUTH_ANONYMOUS_ENABLED": "true", "GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION": "true",
        "GF_ANALYTICS_REPORTING_ENABLED": "false", "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
        "GAGPO_PROMETHEUS": source, "GAGPO_DASHBOARDS": str(DASHBOARDS),
        "GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH": str(DASHBOARDS / "overview.json"),
    }
    with _child("Grafana", command, home / "grafana.log", ready=f"http://{HOST}:{port}/api/health", settings=settings):
        yield f"http://{HOST}:{port}"


def _grafana_command() -> list[str] | None:
    """Returns Grafana's command, or None. A package has the web pages in /usr/share, a release next to its binary."""
    for name, arguments in (("grafana", ["server"]), ("grafana-server", [])):
        binary = shutil.which(name)
        if binary is not None:
            packaged, unpacked = Path("/usr/share/grafana"), Path(binary).resolve().parents[1]
            return [binary, *arguments, "--homepath", str(packaged if packaged.is_dir() else unpacked)]
    return None


def _choose_port(wanted: int, option: str) -> int:
    if not 0 <= wanted < 1 << 16:
        raise UserError(f"there is no port {wanted}", f"choose a {option} from 1 to 65535, or 0 for a free one")
    if wanted and not port_is_free(wanted, HOST):
        raise UserError(f"port {wanted} is taken", f"choose another {option}, or 0 for a free one")
    return wanted or likely_port()


def _write_secret(path: Path, token: str | None) -> Path | None:
    """Writes `token` to a file that only its owner may read. Deletes the file if there is no token."""
    path.unlink(missing_ok=True)
    if token is None:
        return None
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
        file.write(token)
    return path


@contextmanager
def _child(name: str, command: Sequence[str], log: Path, *, ready: str,
           settings: Mapping[str, str] | None = None) -> Iterator[None]:
    """Runs `command` until the block ends. The block starts once `ready` answers. Raises Fault with the log's end."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            ending_with_parent(command), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            env={**os.environ, **(settings or {})},
            start_new_session=True)  # a terminal's Ctrl-C must reach only us, because we end the children in order
    try:
        deadline = time.monotonic() + READY_S
        while not answers(ready):
            if process.poll() is not None:
                lines = log.read_text(errors="replace", encoding="utf-8").strip().splitlines()
                raise Fault(f"{name} ended with status {process.returncode}: {' '.join(lines[-2:])}")
            if time.monotonic() > deadline:
                raise DeadlineExceeded(f"{name} was not ready within {READY_S:.0f} s; see {log}")
            time.sleep(POLL_S)
        yield
    finally:
        process.terminate()
        wait_or_kill(process, STOP_S)
