"""A run stops everything that it started: a real Redis, Ray, environment server and weights actor."""

import contextlib
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import psutil
import pytest
from canaries import listening
from processes import gone, words_of

from deploy.runs.configs import load_config
from services.config.file import dump_config

pytestmark = pytest.mark.ray

COMMAND = """
import sys, time
from pathlib import Path
from deploy import cli
from deploy.runs.configs import load_config

def run(args):
    from deploy.launch.topology import topology
    folder = Path(sys.argv[1])
    with topology(load_config(str(folder / "config.yaml"), ()), run="r", folder=folder,
                  note=lambda text: None) as parts:
        import ray
        from deploy.members.placement import ClusterPlace, bundle
        from deploy.members.ray_actor import Actor

        @ray.remote
        class Sleeper:
            def run(self):
                time.sleep(600)

        worker = Actor("worker", "rollout", "rollout-0", lambda options: Sleeper.options(**options).remote(),
                       ClusterPlace([bundle(cpus=1)]))
        parts.supervisor.add(worker)
        while worker.poll() is None and worker.lacks():
            time.sleep(0.1)
        assert ray.get(parts.weights.latest.remote(), timeout=60) is None
        print("up", ray.get_runtime_context().gcs_address, *parts.urls(), flush=True)
        time.sleep(600)

raise SystemExit(cli.run_guarded(lambda: run(None)))
"""


NEXT_JOB = "/ray.rpc.JobInfoGcsService/GetNextJobID"
"""A gRPC call without arguments that every client makes first."""


CALLS = (NEXT_JOB, "/ray.rpc.NodeManagerService/GetNodeStats", "/ray.rpc.ObjectManagerService/Pull",
         "/ray.rpc.CoreWorkerService/PushTask", "/ray.rpc.ReporterService/GetTraceback")
"""A call of each kind of server that Ray starts: head, raylet, its object manager, workers, agent."""


def answer(address: str, token: str | None, call: str = NEXT_JOB) -> str:
    """Returns the answer of a server of Ray's to a client with this token."""
    metadata = [("authorization", f"Bearer {token}")] if token else []
    with grpc.insecure_channel(address) as channel:
        try:
            channel.unary_unary(call)(b"", timeout=60, metadata=metadata)
        except grpc.RpcError as error:
            return error.code().name
    return "OK"


def ports(process: psutil.Process) -> list[int]:
    """The TCP ports on which a process listens; none if it has ended."""
    try:
        return [connection.laddr.port for connection in process.net_connections("tcp")
                if connection.status == psutil.CONN_LISTEN]
    except psutil.NoSuchProcess:
        return []


def http_answer(port: int, title: str) -> httpx.Response | None:
    """Returns the answer of a port that speaks HTTP; None if it does not."""
    try:
        if "RuntimeEnvAgent" in title:
            return httpx.post(f"http://127.0.0.1:{port}/get_or_create_runtime_env", timeout=60)
        return httpx.get(f"http://127.0.0.1:{port}/api/jobs/", timeout=60)
    except httpx.TransportError:
        return None


def assert_no_port_serves_strangers(processes: list[psutil.Process]) -> None:
    """Every port of Ray's processes refuses a call without a token, by gRPC or by HTTP.

    Two answer every request with metrics: the autoscaler's, and the dashboard's, which has no pages here.
    """
    refused: set[str] = set()
    for process in processes:
        title = " ".join(words_of(process))
        if any(name in title for name in ("gagpo-redis", "serve-env")):
            continue
        for port in ports(process):
            if (answered := http_answer(port, title)) is not None:
                tells_metrics = any(name in title for name in ("monitor.py", "dashboard.py"))
                assert answered.text.startswith("# HELP ") if tells_metrics else answered.status_code == 401, title
                continue
            said = {call: answer(f"127.0.0.1:{port}", None, call) for call in CALLS}
            if "UNAVAILABLE" in said.values() and gone(process.pid):
                continue  # an idle worker, which Ray ends at any time
            assert set(said.values()) == {"UNAUTHENTICATED", "UNIMPLEMENTED"}, (title, said)
            refused |= {call for call, status in said.items() if status == "UNAUTHENTICATED"}
    assert refused == set(CALLS)


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Provides a folder for temporary files with a name short enough for sockets, and with a dead cluster's files in
    it."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as folder:
        stale = Path(folder, "ray", "ray_current_cluster")
        stale.parent.mkdir()
        stale.write_text("127.0.0.1:1")
        yield Path(folder)


@pytest.mark.attack
def test_only_its_owner_gets_in_and_a_polite_end_leaves_nothing(tmp_path: Path, temporary: Path):
    """Ray installs handlers of its own, with which the run would end by status 1 and a printed stack.

    The signal goes to the whole group, as those of a terminal and `timeout` do: Ray's processes may end first.
    tests/chaos/test_run.py ends a run by Ctrl-C.
    """
    dump_config(load_config("alfworld-tiny", ()), tmp_path / "config.yaml")
    environment = {k: v for k, v in os.environ.items() if k not in ("ALFWORLD_DATA", "RAY_ADDRESS")}
    process = subprocess.Popen([sys.executable, "-c", COMMAND, str(tmp_path)], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, start_new_session=True,
                               env=environment | {"TMPDIR": str(temporary)})
    started: list[psutil.Process] = []
    try:
        line = process.stdout.readline()
        assert line.startswith("up "), process.communicate(timeout=60)[1]
        head, server = line.split()[1:]
        assert server.startswith("http://127.0.0.1:")
        started = psutil.Process(process.pid).children(recursive=True)
        titles = " ".join(" ".join(words_of(child)) for child in started)
        assert [name for name in ("gagpo-redis", "raylet", "serve-env", "WeightStore") if name not in titles] == []
        assert listening([psutil.Process(process.pid), *started]) == {"127.0.0.1"}
        assert_no_port_serves_strangers([psutil.Process(process.pid), *started])
        (token,) = temporary.glob("gagpo-ray-*/token")
        assert [stat.S_IMODE(path.stat().st_mode) for path in (token, token.parent)] == [0o600, 0o700]
        assert token.read_text() not in titles
        assert [answer(head, shown) for shown in (None, "guessed", token.read_text())] == [
            "UNAUTHENTICATED", "UNAUTHENTICATED", "OK"]
        os.killpg(process.pid, signal.SIGTERM)
        errors = process.communicate(timeout=240)[1]
        assert process.returncode == 143, errors
        assert "received" not in errors
        _, alive = psutil.wait_procs(started, 60)
        assert [child for child in alive if not gone(child.pid)] == []
        assert [path.name for path in temporary.iterdir()] == ["ray"]
        assert [path.name for path in (temporary / "ray").iterdir()] == ["ray_current_cluster"]
    finally:
        for child in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        process.kill()
        process.wait(60)
