"""A run submitted to a Ray cluster that runs already: two rollout workers, two learner ranks, a given Redis."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import psutil
import pyarrow.parquet as pq
import pytest

from services.store.redis_server import private_redis
from services.telemetry.metrics_file import read_rows

pytestmark = [pytest.mark.vllm, pytest.mark.ray, pytest.mark.timeout(280)]

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@pytest.fixture
def cluster(tmp_path: Path):
    """Starts a head with six logical CPUs and yields the environment that reaches it; ends its process group."""
    port, dashboard, agent, client = free_ports(4)
    temporary = tempfile.mkdtemp(prefix="ray-")  # short: sockets live below it
    environment = {k: v for k, v in os.environ.items() if k not in ("ALFWORLD_DATA", "RAY_ADDRESS")} | {
        "RAY_AUTH_MODE": "disabled", "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{dashboard}"}
    log = tmp_path / "head.log"
    with log.open("wb") as out:
        head = subprocess.Popen(
            ["ray", "start", "--head", "--block", "--port", str(port), "--dashboard-host", "127.0.0.1",
             "--dashboard-port", str(dashboard), "--dashboard-agent-listen-port", str(agent),
             "--ray-client-server-port", str(client), "--num-cpus", "6", "--temp-dir", temporary],
            env=environment, stdout=out, stderr=out, start_new_session=True)
    try:
        _wait_until_up(dashboard, head, log)
        yield environment
    finally:
        below = psutil.Process(head.pid).children(recursive=True)
        for process in [psutil.Process(head.pid), *below]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()  # a polite end takes half a minute
        head.wait(10)
        shutil.rmtree(temporary, ignore_errors=True)


def _wait_until_up(dashboard: int, head: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert head.poll() is None, log.read_text()
        try:
            if httpx.get(f"http://127.0.0.1:{dashboard}/api/jobs/", timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.2)
    pytest.fail(f"no cluster: {log.read_text()}")


def test_a_submitted_run_uses_two_workers_and_two_ranks(cluster: dict[str, str], tmp_path: Path):
    with private_redis(tmp_path / "redis") as redis_url:
        job = subprocess.run(
            ["ray", "job", "submit", "--working-dir", str(ROOT / "deploy" / "configs"), "--", "gagpo", "train",
             "--config", "alfworld-tiny.yaml", "name=submitted", f"runs_dir={tmp_path}", f"redis.url={redis_url}",
             "steps=2", "rollout.workers=2", "rollout.slots=2", "rollout.kv_cache_gb=0.25", "learner.ranks=2",
             "learner.threads=1", "learner.groups_per_step=4", "learner.group_size=2", "env.max_steps=6",
             "model.layers=1", "model.intermediate=64", "sft.demos_per_game=1", "sft.minutes=0.05", "eval.every=2",
             "eval.episodes=8", "eval.panel=0", "eval.compare_cold_start=false"],
            env=cluster, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    said = job.stdout + job.stderr
    assert job.returncode == 0, said
    assert "succeeded" in said
    folder = tmp_path / "submitted"
    assert [row["step"] for row in read_rows(folder / "metrics.jsonl")] == [1, 2]
    assert [row["label"] for row in read_rows(folder / "evaluations.jsonl")] == ["step-000000", "step-000002"]
    assert (folder / "report.html").exists()
    played = [pq.read_table(file).to_pylist() for file in (folder / "episodes").glob("*.parquet")]
    assert {row["worker"] for rows in played for row in rows} == {"rollout-0", "rollout-1"}
    shards = {path.name for path in (folder / "checkpoints" / "step-00000002").glob("*.safetensors")}
    assert {name.split("-model-")[0] for name in shards} == {"shard-00001", "shard-00002"}
    assert not (folder / "redis").exists(), "a private Redis was started beside the one that was given"
