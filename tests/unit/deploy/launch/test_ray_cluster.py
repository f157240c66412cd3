"""A private Ray that does not start at once is started again, until its time is over."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import ray
from processes import gone, name_of
from waiting import wait_until

from deploy.launch.ray_cluster import _LOOPBACK, _existing, _start, _uninterrupted, private_ray, ray_cluster
from deploy.runs.configs import default_config
from services.errors import DeadlineExceeded

TOYS = Path(__file__).parents[3] / "toys"

pytestmark = pytest.mark.ray


def slow(*, starts: int):
    """A start that fails as Ray's does on a busy machine, so many times."""
    made: list[int] = []

    def start() -> None:
        made.append(1)
        if len(made) <= starts:
            raise Exception("The current node timed out during startup.")

    return start, made


def test_a_ray_that_was_too_slow_is_started_again(tmp_path: Path):
    start, made = slow(starts=2)
    told: list[str] = []
    _start(start, tmp_path, 600.0, told.append)
    assert len(made) == 3
    assert len(told) == 2, "the last line said `starting Ray` for minutes"
    assert told[0].startswith("Ray did not start, and is started again for up to 600 s: Exception: The current node")


def test_it_is_given_up_after_its_time_with_the_reason_and_the_key(tmp_path: Path):
    start, made = slow(starts=1)
    with pytest.raises(DeadlineExceeded, match=r"0\.001 s \(ray\.start_seconds\): .*timed out during startup"):
        _start(start, tmp_path, 0.001, str)
    assert len(made) == 1


def test_an_interrupted_start_leaves_no_process(monkeypatch):
    """Not even a child that hides its environment, as Ray's agents do when they set their title."""
    started: list[subprocess.Popen] = []
    hidden: list[psutil.Process] = []

    def interrupted(**_: object) -> None:
        started.append(subprocess.Popen(["sh", "-c", "env -i sleep 600 & wait"]))
        wait_until(lambda: [name_of(one) for one in psutil.Process(started[0].pid).children()] == ["sleep"])
        hidden.extend(psutil.Process(started[0].pid).children())
        raise KeyboardInterrupt

    monkeypatch.setattr(ray, "init", interrupted)
    for variable in (*_LOOPBACK, "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(variable, "")  # so that they are put back
    with pytest.raises(KeyboardInterrupt), private_ray():
        raise AssertionError("it did not start")
    assert started[0].wait(60) < 0
    wait_until(lambda: gone(hidden[0].pid), seconds=5.0)


@pytest.mark.attack
@pytest.mark.parametrize(("mode", "warnings"), [("disabled", 1), ("", 1), ("token", 0)])
def test_a_cluster_of_others_that_asks_for_no_token_is_told_to_the_user(monkeypatch, mode: str, warnings: int):
    """A cluster that asks for one would have refused a connection without it."""
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr("deploy.launch.ray_cluster.check_ray", lambda _: None)
    told: list[str] = []
    with _existing("10.0.0.1:6379", {}, told.append):
        pass
    assert len(told) == warnings
    assert all("10.0.0.1:6379 asks for no token" in line for line in told)


def test_nodes_that_join_later_reach_redis_at_the_address_of_this_node(monkeypatch):
    """A cluster that has one node when the run starts is not taken for a machine of its own, with a Redis on loopback.
    """
    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(ray, "nodes", lambda: [{"NodeManagerAddress": "10.0.0.1", "Alive": True}])
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "10.0.0.1")
    monkeypatch.setattr("deploy.launch.ray_cluster.check_ray", lambda _: None)
    with ray_cluster(default_config(["ray.address=10.0.0.1:6379"]), "late", lambda _: None) as address:
        assert address == "10.0.0.1"


def test_ctrl_c_waits_for_the_end_of_a_start_and_a_second_one_does_not():
    done: list[str] = []
    for presses, expected in ((1, ["pressed", "started"]), (2, ["pressed"])):
        done.clear()
        with pytest.raises(KeyboardInterrupt), _uninterrupted():  # noqa: PT012 - the block is what is tested
            signal.raise_signal(signal.SIGINT)
            done.append("pressed")
            if presses == 2:
                signal.raise_signal(signal.SIGINT)
            done.append("started")
        assert done == expected
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


TERMINATED = """
import os, signal, threading, time
import psutil
from deploy.launch.ray_cluster import private_ray
from services.process.signals import signals_unwind

def terminate():
    while not any(child.name() == "gcs_server" for child in psutil.Process().children()):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)

with signals_unwind():
    threading.Thread(target=terminate, daemon=True).start()
    try:
        with private_ray():
            time.sleep(600)
    finally:
        print("ended in order", flush=True)
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(600)
        finally:
            print("a second one is heard")
"""


@pytest.mark.timeout(900)
def test_sigterm_while_ray_starts_ends_the_command_as_at_any_other_time():
    """ray.init puts a handler of its own in the place of ours, which exits with status 15. ray.shutdown takes ours
    away."""
    done = subprocess.run([sys.executable, "-c", TERMINATED], capture_output=True, text=True, timeout=800, check=False)
    assert (done.returncode, done.stdout) == (
        128 + signal.SIGTERM, "ended in order\na second one is heard\n")


PRINTED = """
import os
from deploy.launch import ray_cluster
os.environ.update(ray_cluster._QUIET)
from ray._private.worker import print_to_stdstream
for text in ("Raylet is terminated. Last 20 lines of the log:\\\\n    [state-dump] NodeManager", "The node 7 is dead"):
    print_to_stdstream({"lines": [text], "pid": "raylet", "is_err": False}, ignore_prefix=False)
"""


def test_a_lost_node_is_one_line_without_the_statistics_of_its_raylet():
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run([sys.executable, "-c", PRINTED], capture_output=True, text=True, timeout=300, check=True,
                          env=environment)
    (line,) = done.stdout.splitlines()
    assert line.endswith("The node 7 is dead")


BEFORE = """
import ray
from deploy.launch.ray_cluster import private_ray
from services.errors import UserError
ray.init(address="local", num_cpus=1, include_dashboard=False)
ray.shutdown()
try:
    with private_ray():
        print("it started")
except UserError as error:
    print(error)
"""


OTHER = """
import sys
from deploy.launch import ray_cluster
ray_cluster.LEAVE_S = 1.0
with ray_cluster._existing(sys.argv[1], {"log_to_driver": False}, str):
    print("connected", flush=True)
    input()
"""
HUNG = """
import subprocess, sys
sys.path.append(sys.argv[1])
from processes import only_child
from deploy.launch import ray_cluster
ray_cluster.LEAVE_S = 1.0
with ray_cluster.private_ray(log_to_driver=False, configure_logging=False):
    import ray
    command = [sys.executable, "-c", sys.argv[2], ray.get_runtime_context().gcs_address]
    other = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout.readline() == "connected\\n"
    only_child("gcs_server").suspend()
    other.communicate("\\n")
    print(other.returncode)
print("ended")
"""


def test_a_gcs_that_hangs_keeps_nobody():
    """Neither the owner of the cluster nor a process that has connected to it: Ray alone would wait forever."""
    done = subprocess.run([sys.executable, "-c", HUNG, str(TOYS), OTHER], capture_output=True, text=True, timeout=240,
                          check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["0", "ended"]), done.stderr


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_process_that_used_a_ray_without_a_token_is_told_so_at_once():
    """A notebook may have; Ray keeps the mode of a process's first cluster, so every other try fails as well."""
    done = subprocess.run([sys.executable, "-c", BEFORE], capture_output=True, text=True, timeout=800, check=True)
    assert done.stdout.splitlines()[-1].startswith("this Python process has used a Ray without a token before")


ASCII_CLUSTER = """
import json, os, sys
from pathlib import Path

import ray
from ray.cluster_utils import Cluster
from deploy.launch.ray_cluster import _existing

ascii = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
before = dict(os.environ)
os.environ.update(ascii)
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
os.environ.clear()
os.environ.update(before, RAY_JOB_CONFIG_JSON_ENV_VAR=json.dumps(
    {"runtime_env": {"env_vars": {"PYTHONUTF8": "0", "MINE": "kept"}}, "metadata": {}}))

@ray.remote
def write(folder):
    (Path(folder) / "é").write_text("火")
    return [os.environ["MINE"], *os.listdir(folder)]

with _existing(cluster.address, {"log_to_driver": False, "configure_logging": False}, str):
    print(json.dumps(ray.get(write.remote(sys.argv[1]))))
cluster.shutdown()
"""


@pytest.mark.long
@pytest.mark.timeout(900)
def test_actors_on_a_cluster_with_an_ascii_locale_open_any_file(tmp_path: Path):
    """The driver's paths go to actors as text. Ray refuses a variable that the submitted job has as well."""
    folder = tmp_path / "Größe"
    folder.mkdir()
    done = subprocess.run([sys.executable, "-c", ASCII_CLUSTER, str(folder)], capture_output=True, encoding="utf-8",
                          timeout=800, check=True, env=os.environ | {"RAY_AUTH_MODE": "disabled"})
    assert json.loads(done.stdout.splitlines()[-1]) == ["kept", "é"]
    assert (folder / "é").read_text(encoding="utf-8") == "火"
