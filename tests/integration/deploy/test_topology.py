"""What a run brings up, it takes down: Redis, Ray, environment server and weights actor, for real."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from deploy.runs.configs import load_config
from services.config.file import dump_config

pytestmark = [pytest.mark.ray, pytest.mark.timeout(120)]

COMMAND = """
import sys, time
from pathlib import Path
from deploy import cli
from deploy.runs.configs import load_config

def run(args):
    from deploy.launch.topology import topology
    folder = Path(sys.argv[1])
    with topology(load_config(str(folder / "config.yaml"), ()), run="r", folder=folder,
                  config_file=folder / "config.yaml", note=lambda text: None) as parts:
        import ray
        assert ray.get(parts.weights.latest.remote(), timeout=60) is None
        print("up", *parts.env_urls, flush=True)
        time.sleep(60)

def add(subparsers):
    subparsers.add_parser("work").set_defaults(run=run)

cli.COMMANDS = (add,)
raise SystemExit(cli.main(["work"]))
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_polite_end_unwinds_and_leaves_nothing(tmp_path: Path, number: signal.Signals, status: int):
    """Ray installs handlers of its own, with which the run would end by status 1 and a printed stack."""
    dump_config(load_config("alfworld-tiny", ()), tmp_path / "config.yaml")
    environment = {k: v for k, v in os.environ.items() if k not in ("ALFWORLD_DATA", "RAY_ADDRESS")}
    process = subprocess.Popen([sys.executable, "-c", COMMAND, str(tmp_path)], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    started: list[psutil.Process] = []
    try:
        assert process.stdout.readline().startswith("up http://127.0.0.1:")
        started = psutil.Process(process.pid).children(recursive=True)
        titles = " ".join(" ".join(child.cmdline()) for child in started)
        assert [name for name in ("redis-server", "raylet", "serve-env", "WeightsShelf") if name not in titles] == []
        process.send_signal(number)
        errors = process.communicate(timeout=30)[1]
        assert process.returncode == status, errors
        assert "received" not in errors
        _, alive = psutil.wait_procs(started, 10)
        assert [child for child in alive if child.status() != psutil.STATUS_ZOMBIE] == []
    finally:
        for child in started:
            if child.is_running():
                child.kill()
        process.kill()
        process.wait(10)
