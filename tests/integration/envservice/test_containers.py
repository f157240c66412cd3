"""The images of the environments as containers; test_bad_input.py sends its requests to that of ALFWorld."""

import asyncio
import os
import random
import subprocess
from collections.abc import Iterator

import pytest
from container import SCRIPT, TOKEN, Container, missing, podman, running

from envservice.client.client import EnvClient

pytestmark = pytest.mark.long

TASK = "alfworld-gen/valid/pick-0000"
FAMILIES = ("alfworld", "webshop", "search", "scienceworld")
SMALL_MB = {"alfworld": 330, "webshop": 430, "search": 430, "scienceworld": 600}
"""Largest size of an image, its base of 180 to 225 MB included."""


@pytest.fixture(params=FAMILIES)
def container(request: pytest.FixtureRequest) -> Iterator[Container]:
    if reason := missing(request.param):
        pytest.skip(reason)
    with running(request.param) as one:
        yield one


async def first_task(url: str) -> str:
    async with EnvClient([url], TOKEN, timeout_s=90) as client:
        info = await client.info()
        return (await client.tasks(next(iter(info.splits)))).tasks[0]


async def play(url: str, task: str, steps: int, pause_s: float = 0.0) -> int:
    """Plays one game at random. Returns how often it was rebuilt."""
    async with EnvClient([url], TOKEN, timeout_s=90) as client:
        episode, choose = client.episode("game", task), random.Random(task)
        now = await episode.reset()
        for _ in range(steps):
            if now.done:
                break
            now = await episode.step(choose.choice(now.admissible_actions or ["look"]))
            await asyncio.sleep(pause_s)
        await episode.close()
    return episode.replays


def test_a_container_has_no_privileges_no_way_out_and_plays(container: Container):
    status = dict(line.split(":\t", 1) for line in container.inside(
        "cat", "/proc/self/status").stdout.splitlines() if ":\t" in line)
    assert (status["CapEff"], status["NoNewPrivs"], status["Seccomp"]) == ("0" * 16, "1", "2")
    assert status["Uid"].split() == ["10001"] * 4
    for folder in ("/", "/opt/gagpo", "/etc", "/var"):
        assert container.inside("touch", f"{folder}/x").returncode, folder
    out = container.inside("/opt/gagpo/bin/python", "-c", "import socket; socket.create_connection(('1.1.1.1', 53), 3)")
    assert "Network is unreachable" in out.stderr
    assert asyncio.run(play(container.url, asyncio.run(first_task(container.url)), 4)) == 0
    assert podman("healthcheck", "run", container.id, check=False).returncode == 0
    assert container.inspect("{{.HostConfig.Memory}} {{.HostConfig.PidsLimit}}") == f"{2**30} 512"
    size = int(podman("image", "inspect", container.inspect("{{.ImageName}}"), "--format", "{{.Size}}").stdout)
    assert size < 1e6 * SMALL_MB[container.family]
    podman("stop", container.id)
    assert container.inspect("{{.State.ExitCode}}") == "143", "SIGTERM was heard"


@pytest.fixture
def alfworld() -> None:
    if reason := missing("alfworld"):
        pytest.skip(reason)


@pytest.mark.usefixtures("alfworld")
def test_memory_and_processes_are_limited_and_the_server_survives():
    with running("alfworld", "--memory", "256m", "--pids-limit", "48") as one:
        hungry = one.inside("/opt/gagpo/bin/python", "-c", "bytearray(b'x') * 2**29")
        assert hungry.returncode == 137
        forks = "import os\nfor _ in range(100):\n  if os.fork() == 0: os.execv('/bin/sleep', ['sleep', '5'])"
        assert "BlockingIOError" in one.inside("/opt/gagpo/bin/python", "-c", forks).stderr
        assert asyncio.run(play(one.url, TASK, 4)) == 0


@pytest.mark.usefixtures("alfworld")
def test_a_server_that_starts_again_is_the_same_container():
    with running("alfworld", arguments=("env.recycle_hours=0.01",)) as one:
        replays = asyncio.run(play(one.url, TASK, 12, pause_s=4.0))
        assert "starting again" in one.logs()
        assert replays > 0
        assert one.inspect("{{.State.Running}} {{.RestartCount}} {{.State.Pid}}").startswith("true 0 ")


@pytest.mark.usefixtures("alfworld")
def test_a_container_without_a_token_refuses_to_start():
    environ = {name: value for name, value in os.environ.items() if name != "GAGPO_ENV_TOKEN"}
    done = subprocess.run(
        [SCRIPT, "run", "alfworld"], capture_output=True, text=True, timeout=120, check=True, env=environ)
    name = done.stdout.split()[-1]
    try:
        assert podman("wait", name).stdout.strip() == "2"
        log = podman("logs", name)
        assert "there is no token; set GAGPO_ENV_TOKEN" in log.stdout + log.stderr
    finally:
        podman("rm", "--force", name)


