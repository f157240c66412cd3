"""ScienceWorld over real HTTP: gold paths of all task types, sessions that outlive their server, JVMs that do not."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from ports import likely_port
from processes import gone, words_of

from envservice.client.client import EnvClient
from envservice.scienceworld.simulator import find_program
from envservice.scienceworld.tasks import COUNTS, place_of
from services.errors import UserError

GAGPO = Path(sys.executable).with_name("gagpo")
GOLD: dict[str, list[str]] = json.loads(Path(__file__).with_name("scienceworld_gold.json").read_text())
"""Gold paths, written by `python -m lab.scienceworld gold --split train --out FILE`, without those of LONG."""
LONG = {"inclined-plane-friction-unnamed-surfaces", "mendelian-genetics-known-plant",
        "mendelian-genetics-unknown-plant"}
"""Task types whose solutions have 430 steps, as many as those of twenty others."""
AT_ONCE = 3


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    try:
        find_program()
    except UserError as error:
        pytest.skip(str(error))


class Server:
    """`gagpo serve-env` for ScienceWorld, in its own process."""

    def __init__(self, port: int) -> None:
        command = [str(GAGPO), "serve-env", "--config", "scienceworld-tiny", "--port", str(port),
                   "--exit-with-parent", str(os.getpid())]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        ready = self.process.stdout.readline()
        assert " on http://" in ready, "the server ended before it was ready"
        self.url = ready.rpartition(" on ")[2].strip()
        self.port = int(self.url.rsplit(":", 1)[1])

    def jvms(self) -> list[int]:
        children = psutil.Process(self.process.pid).children()
        return sorted(child.pid for child in children if any("GatewayServer" in word for word in words_of(child)))


@contextmanager
def served(port: int | None = None, end: signal.Signals = signal.SIGKILL) -> Iterator[Server]:
    """Ends the server with a signal at the end, and checks that no JVM remains."""
    server = Server(port or likely_port())
    try:
        yield server
        left = server.jvms()
    finally:
        server.process.send_signal(end)
        server.process.wait(timeout=60)
    assert left
    until = time.monotonic() + 60
    while not all(map(gone, left)) and time.monotonic() < until:
        time.sleep(0.1)
    assert all(map(gone, left))


def shortest(names: tuple[str, ...]) -> list[str]:
    return [task for task in GOLD if place_of(task).name in names]


async def play(episode: Any, actions: list[str]) -> Any:
    """Returns the outcome after the last action, or at the episode's end."""
    now = None
    for action in actions:
        now = await episode.step(action.lower())
        if now.done:
            break
    return now


@pytest.mark.long
@pytest.mark.timeout(900)  # 700 steps of 20 ms, on a machine that may be busy
async def test_the_simulators_solutions_of_all_task_types_but_three_reach_100():
    assert {place_of(task).name for task in GOLD} == set(COUNTS) - LONG
    with served() as server:
        client, turn = EnvClient([server.url], timeout_s=300), asyncio.Semaphore(AT_ONCE)

        async def solve(task: str) -> tuple[str, int, float, bool]:
            async with turn:
                episode = client.episode(task, task)
                await episode.reset()
                end = await play(episode, GOLD[task])
                await episode.close()
                return task, int(end.info["score"]), end.reward, end.won

        found = await asyncio.gather(*map(solve, GOLD))
        await client.close()
        assert [one for one in found if one[1:] != (100, 1.0, True)] == []
        assert len(server.jvms()) == AT_ONCE


async def test_games_go_on_where_they_were_after_the_death_of_their_server():
    tasks = shortest(("find-non-living-thing", "lifespan-shortest-lived", "power-component"))
    with served() as first:
        client = EnvClient([first.url], timeout_s=300)
        episodes = [client.episode(task, task) for task in tasks]
        for episode, task in zip(episodes, tasks, strict=True):
            await episode.reset()
            await play(episode, ["look around", *GOLD[task][:2]])
    with served(first.port, signal.SIGTERM):
        for episode, task in zip(episodes, tasks, strict=True):
            end = await play(episode, GOLD[task][2:])
            assert (end.info["score"], end.won) == (100, True)
            assert end.info["steps"] > 3
            assert episode.replays == 1
        await client.close()


def test_without_java_a_run_is_refused_in_one_line(tmp_path: Path):
    done = subprocess.run(
        [GAGPO, "train", "--config", "scienceworld-tiny", "--dry-run"], env={**os.environ, "JAVA_HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        f"error: ScienceWorld runs on Java, and there is none at {tmp_path}/bin/java; apt-get install "
        "openjdk-17-jre-headless, or point JAVA_HOME to a newer one\n")
