"""A run submitted to a Ray cluster that runs already, with a given Redis and environment server.

The ranks first make a cold start of a model of the user's. Then two workers and two ranks use two GPUs in turns. The
GPUs are pretended (tests/toys/pretended_gpus): all compute on the CPU, and a GPU's memory fits one of them. A worker
is killed in its sleep, and a rank while it computes. Then the run is stopped by SIGTERM, and submitted again as a
supervisor does it.

The password of Redis and the token of the server are canaries: nothing that the run shows or leaves has them.
"""

import contextlib
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pyarrow.parquet as pq
import pytest
from canaries import Watch, files_with
from ports import likely_port

from deploy.runs.configs import load_config
from deploy.training.cold_start import cold_start
from services.store.redis_server import private_redis
from services.telemetry.metrics_file import read_rows

pytestmark = [pytest.mark.long, pytest.mark.vllm, pytest.mark.ray, pytest.mark.timeout(3000)]

ROOT = Path(__file__).parents[2]
PRETENDED_GPUS = ROOT / "tests" / "toys" / "pretended_gpus"
LONG_S = 600.0
BIN = Path(sys.executable).parent


@pytest.fixture
def cluster(tmp_path: Path):
    """Yields the environment that reaches a head with six logical CPUs and two pretended GPUs; ends its processes."""
    port, dashboard, agent, client = (likely_port() for _ in range(4))
    temporary = tempfile.mkdtemp(prefix="ray-")  # short: sockets live below it
    environment = {k: v for k, v in os.environ.items() if k not in ("ALFWORLD_DATA", "RAY_ADDRESS")} | {
        "RAY_AUTH_MODE": "disabled", "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{dashboard}", "TMPDIR": temporary,
        "RAY_JOB_STOP_WAIT_TIME_S": "120", "PRETENDED_GPUS": str(tmp_path / "gpus"),
        "PYTHONPATH": os.pathsep.join([str(PRETENDED_GPUS), *filter(None, [os.environ.get("PYTHONPATH")])])}
    (tmp_path / "gpus").mkdir()
    log = tmp_path / "head.log"
    with log.open("wb") as out:
        head = subprocess.Popen(
            ["ray", "start", "--head", "--block", "--port", str(port), "--dashboard-host", "127.0.0.1",
             "--dashboard-port", str(dashboard), "--dashboard-agent-listen-port", str(agent),
             "--ray-client-server-port", str(client), "--num-cpus", "6", "--num-gpus", "2", "--temp-dir", temporary],
            env=environment, stdout=out, stderr=out, start_new_session=True)
    try:
        _wait_until_up(dashboard, head, log)
        yield environment | {"HEAD": str(head.pid)}
    finally:
        below = psutil.Process(head.pid).children(recursive=True)
        for process in [psutil.Process(head.pid), *below]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()  # a polite end takes half a minute
        head.wait(60)
        shutil.rmtree(temporary, ignore_errors=True)


def _wait_until_up(dashboard: int, head: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        assert head.poll() is None, log.read_text()
        try:
            if httpx.get(f"http://127.0.0.1:{dashboard}/api/jobs/", timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.2)
    pytest.fail(f"no cluster: {log.read_text()}")


@contextlib.contextmanager
def environment_server(token: str) -> Iterator[str]:
    """Yields the address of a `gagpo serve-env` that asks for the token."""
    port = likely_port()
    environment = {k: v for k, v in os.environ.items() if k != "ALFWORLD_DATA"} | {"GAGPO_ENV_TOKEN": token}
    with subprocess.Popen([BIN / "gagpo", "serve-env", "--config", "alfworld-tiny", "--port", str(port)],
                          env=environment) as server:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


@contextlib.contextmanager
def canaries(folder: Path) -> Iterator[tuple[dict[str, str], list[str]]]:
    """Yields the secrets of a Redis and an environment server, and the arguments that lead a run to both."""
    token = f"c4n4ry-{secrets.token_urlsafe(16)}"
    with private_redis(folder / "redis") as url, environment_server(token) as address:
        password = str(urlsplit(url).password)
        for name, secret in (("password", password), ("token", token)):
            (folder / name).touch(mode=0o600)
            (folder / name).write_text(secret)
        yield {"the password of Redis": password, "the token": token}, [
            f"redis.url={url.replace(':' + password, '')}", f"redis.password_file={folder / 'password'}",
            f"env.urls=[{address}]", f"env.token_file={folder / 'token'}"]


def ray_job(cluster: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """Calls `ray job` as on a laptop that has Ray but not gagpo."""
    return subprocess.run(["ray", "job", *words], env=cluster, cwd=cluster["TMPDIR"], capture_output=True, text=True,
                          timeout=900, check=False)


class FirstLife:
    """The first submission of the run, and what it does, read from its folder."""

    def __init__(self, cluster: dict[str, str], folder: Path) -> None:
        self._cluster, self._folder = cluster, folder
        self._gpus = Path(cluster["PRETENDED_GPUS"])

    @property
    def step(self) -> int:
        """The last learner step in metrics.jsonl."""
        return max((row["step"] for row in read_rows(self._folder / "metrics.jsonl")), default=0)

    @property
    def log(self) -> str:
        """The lines of the controller, then those of each node."""
        return "".join(path.read_text() for path in sorted(self._folder.rglob("*.jsonl")))

    def wait(self, what: str, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + LONG_S
        while not holds():
            assert time.monotonic() < deadline, f"no {what}\n" + ray_job(self._cluster, "logs", "first").stdout
            time.sleep(0.1)

    def wait_for_a_step(self) -> None:
        """Waits for a learner step after the present one. A learner that starts again replays those before it."""
        present = self.step
        self.wait(f"step after {present}", lambda: self.step > present)

    @contextlib.contextmanager
    def computing(self, mark: str) -> Iterator[None]:
        """Inside, both ranks are in the middle of a learner step, and both samplers sleep."""
        (self._gpus / "new").write_text(mark)
        (self._gpus / "new").rename(self._gpus / "hold")
        self.wait("ranks that compute", lambda: len(list(self._gpus.glob(f"{mark}-*"))) == 2)
        yield
        (self._gpus / "hold").unlink()

    def processes(self, title: str) -> list[psutil.Process]:
        """The living processes with this title."""
        found = []
        for process in psutil.Process(int(self._cluster["HEAD"])).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if title in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def survive_deaths(self) -> None:
        """A worker is killed in its sleep, and a rank while it computes."""
        with self.computing("before-the-worker-dies"):
            killed, other = self.processes("ray::RolloutHost")
            killed.kill()
            self.wait("another worker", lambda: set(self.processes("ray::RolloutHost")) - {killed, other})
            assert re.search(r"rollout worker \d died", self.log)
        self.wait_for_a_step()
        assert "out of memory" not in self.log or "could not be renewed" in self.log  # a machine that stood still
        with self.computing("before-a-rank-dies"):
            self.processes("ray::LearnerRank")[0].kill()
            self.wait("the learner's death", lambda: "learner died" in self.log)
        self.wait_for_a_step()


@pytest.fixture
def own_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provides a model that stands for the user's own."""
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    config = load_config("alfworld-tiny", ["model.layers=1", "model.intermediate=64", "sft.demos_per_game=1"])
    return cold_start(config, tmp_path / "own", minutes=0.01, report=lambda _: None)


@pytest.mark.attack
def test_a_stopped_job_goes_on_from_its_checkpoint_uses_all_it_was_given_and_shows_no_secret(
        cluster: dict[str, str], own_model: Path, tmp_path: Path):
    """It would have made no checkpoint before its end. The second job is what a supervisor would submit."""
    runs = tmp_path / "runs"
    folder = runs / "submitted"
    with canaries(tmp_path) as (planted, arguments):
        watch = Watch(int(cluster["HEAD"]), planted)
        watch.start()
        command = [
            "--working-dir", str(ROOT / "deploy" / "configs"), "--", "gagpo", "train", "--resume",
            "--config", "alfworld-tiny.yaml", "name=submitted", f"runs_dir={runs}", *arguments,
            f"model.path={own_model}", "rollout.workers=2", "rollout.gpus=0.5", "rollout.sleep=true", "rollout.slots=2",
            "rollout.kv_cache_gb=0.25", "learner.ranks=2", "learner.gpus=0.5", "learner.threads=1",
            "learner.groups_per_step=4", "learner.group_size=2", "env.max_steps=6",
            "sft.demos_per_game=1", "sft.minutes=0.05", "eval.every=1000", "eval.episodes=8",
            "eval.panel=0", "eval.compare_cold_start=false", "checkpoint.every=1000",
            "supervision.leave_seconds=90"]
        ray_job(cluster, "submit", "--no-wait", "--submission-id", "first", *command, "steps=1000")
        run = FirstLife(cluster, folder)
        run.wait("two steps", lambda: run.step >= 2)  # then no evaluation delays the next publication
        run.survive_deaths()
        stopped = ray_job(cluster, "stop", "first")
        left = ray_job(cluster, "logs", "first").stdout
        durable = int(re.search(r"the newest checkpoint is of learner step (\d+)", left)[1])
        assert 2 <= durable == read_rows(folder / "metrics.jsonl")[-1]["step"], left
        job = ray_job(cluster, "submit", *command, f"steps={durable + 1}")
        watch.end()
    said = stopped.stdout + left + job.stdout + job.stderr
    assert job.returncode == 0, said
    assert f"continues after learner step {durable}" in said
    assert json.loads((folder / "model-cold-start" / "sft.json").read_text())["ranks"] == 2
    _is_complete(folder, durable + 1)
    assert {"gcs_server", "raylet"} <= watch.names
    assert watch.found == set()
    assert not any(secret in said for secret in planted.values())
    found, count = files_with(planted, [runs, Path(cluster["TMPDIR"])])
    assert count > 100
    assert found == set()


def _is_complete(folder: Path, steps: int) -> None:
    assert [row["step"] for row in read_rows(folder / "metrics.jsonl")] == list(range(1, steps + 1))
    assert [row["label"] for row in read_rows(folder / "evaluations.jsonl")] == ["step-000000", f"step-{steps:06d}"]
    assert (folder / "report.html").exists()
    played = [pq.read_table(file).to_pylist() for file in (folder / "episodes").glob("*.parquet")]
    assert {row["worker"] for rows in played for row in rows} == {"rollout-0", "rollout-1"}
    shards = {path.name for path in (folder / "checkpoints" / f"step-{steps:08d}").glob("*.safetensors")}
    assert {name.split("-model-")[0] for name in shards} == {"shard-00001", "shard-00002"}
    assert not (folder / "redis").exists(), "a private Redis was started beside the one that was given"
