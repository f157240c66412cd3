"""Servers that restart while clients play, stop cleanly, and drop idle sessions, over real HTTP."""

import asyncio
import dataclasses
import re
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
from toy_environment import ToyEnvironment, solution

from envservice.client.client import EnvClient
from envservice.server.app import Settings
from envservice.server.process import serve
from services.errors import UserError

Start = Callable[..., Any]
TOY = Path(__file__).parents[2] / "toys" / "toy_environment.py"
MIB = 2**20


def expected(task: str) -> list[dict[str, Any]]:
    session = ToyEnvironment().open(task)
    return [dataclasses.asdict(o) for o in [session.reset(), *(session.step(a) for a in solution(task))]]


async def play(client: EnvClient, name: str, task: str, pause_s: float) -> int:
    """Plays one game to its end and checks each text. Returns how often it was rebuilt."""
    episode = client.episode(name, task)
    results = [await episode.reset()]
    for action in solution(task):
        await asyncio.sleep(pause_s)
        results.append(await episode.step(action))
    rows = [dataclasses.asdict(result) for result in results]
    assert [{key: value for key, value in row.items() if key != "digest"} for row in rows] == expected(task)
    await episode.close()
    return episode.replays


async def play_on(client: EnvClient, until: Callable[[], bool]) -> int:
    """Plays with eight players, each one game after the other."""
    replays = 0

    async def player(number: int) -> None:
        nonlocal replays
        rounds = 0
        while not until():
            replays += await play(client, f"{number}/{rounds}", f"toy/train/{(number + rounds) % 20:02d}", 0.1)
            rounds += 1

    await asyncio.gather(*(player(number) for number in range(8)))
    return replays


@pytest.mark.parametrize("threaded", [False, True], ids=["inline", "threaded"])
async def test_a_server_that_starts_again_by_age_loses_no_episode_and_keeps_its_process(start: Start, threaded: bool):
    server = start("--recycle-s", "1", *(["--threaded"] if threaded else []))
    loop = asyncio.get_running_loop()
    lives = [server.process.stdout.readline]

    def starts_seen() -> list[str]:
        return [lives[0](), lives[0]()]

    watching = loop.run_in_executor(None, starts_seen)
    async with EnvClient([server.url], timeout_s=60) as client:
        replays = await play_on(client, watching.done)
    seen = await watching
    assert {line.split(" on ")[1].strip() for line in seen} == {server.url}
    life = ["started", "serving", "starting again", "draining", "drained"]
    log = server.log()
    assert [line["event"] for line in log[:12]] == [*life, *life, "started", "serving"]
    assert {line["pid"] for line in log if line["event"] == "started"} == {server.process.pid}
    assert log[2]["reason"].startswith("it is 0.00 hours old")
    assert replays > 0
    assert server.process.poll() is None


async def test_a_server_that_leaks_starts_again_and_gives_the_memory_back(start: Start):
    server = start("--leak", str(4 * MIB), "--recycle-bytes", str(256 * MIB))
    process = psutil.Process(server.process.pid)
    peak = 0

    def leaked_enough() -> bool:
        nonlocal peak
        peak = max(peak, process.memory_info().rss)
        return lives.done()

    lives = asyncio.get_running_loop().run_in_executor(
        None, lambda: [server.process.stdout.readline() for _ in range(2)])
    async with EnvClient([server.url], timeout_s=60) as client:
        replays = await play_on(client, leaked_enough)
    await lives
    reasons = [line["reason"] for line in server.log() if line["event"] == "starting again"]
    assert all(reason.startswith("it has grown to 0.") for reason in reasons)
    assert replays > 0
    assert peak < 600 * MIB


async def test_no_request_is_refused_while_a_server_restarts_itself(start: Start):
    server = start("--recycle-s", "1")
    again = asyncio.get_running_loop().run_in_executor(None, server.process.stdout.readline)
    answered = 0
    while not again.done():
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.close()
        answered += 1
        await asyncio.sleep(0.01)
    assert answered > 0


def test_a_limit_below_what_the_environment_alone_takes_is_a_mistake():
    done = subprocess.run([sys.executable, str(TOY), "--recycle-bytes", "1000"], capture_output=True, text=True,
                          timeout=60, check=False)
    assert re.search(r"UserError: the server takes 0\.\d\d GiB .* is 0\.00; set it to 0\.\d\d or more", done.stderr)


@pytest.mark.parametrize("limit", [{"recycle_s": 3600.0}, {"recycle_bytes": 2**40}])
def test_a_server_of_a_live_environment_does_not_start_again(limit: dict[str, Any]):
    class Live(ToyEnvironment):
        replay = "live"

    with pytest.raises(UserError, match="toy is live, so nobody can rebuild the sessions of a server that starts ag"):
        serve(Live, host="127.0.0.1", port=0, settings=Settings(**limit))


async def test_an_idle_server_drops_the_sessions_whose_lease_has_ended(start: Start):
    server = start("--lease-s", "0.5")
    async with EnvClient([server.url]) as client, httpx.AsyncClient(trust_env=False, timeout=60) as http:
        await client.episode("e", "toy/train/00").reset()
        until = time.monotonic() + 60
        while "gagpo_env_sessions 0.0" not in (await http.get(f"{server.url}/metrics")).text.splitlines():
            assert time.monotonic() < until
            await asyncio.sleep(0.1)


async def test_a_long_batch_is_cut_short_and_nothing_of_it_is_lost(start: Start):
    """Ten steps of a second each are in one request when the server is told to stop, during the second of them."""
    server = start("--threaded")
    async with EnvClient([server.url], timeout_s=60) as client:
        episodes = [client.episode(str(number), "toy/train/00") for number in range(10)]
        await asyncio.gather(*(episode.reset() for episode in episodes))
        steps = [asyncio.create_task(episode.step("sleep")) for episode in episodes]
        async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
            while "gagpo_env_steps_total 0.0" in (await http.get(f"{server.url}/metrics")).text.splitlines():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        server.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(server.process.wait, 60) == -signal.SIGTERM
        start("--threaded", port=server.port)
        assert len({result.digest for result in await asyncio.gather(*steps)}) == 1
    assert 0 < sum(episode.replays for episode in episodes) < len(steps)  # the others were answered before
