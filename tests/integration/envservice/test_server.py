"""Server processes: how they start, report that, stop, and end themselves if their environment hangs."""

import asyncio
import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from processes import gone
from toy_environment import ToyEnvironment
from waiting import wait_until

from envservice.adapters.openenv import OpenEnvGame
from envservice.client.client import EnvClient
from envservice.server.app import Settings
from envservice.server.process import serve
from lab.bench.served import served
from services.errors import EnvFault, UserError
from services.http.server import bind

Start = Callable[..., Any]
TOY = Path(__file__).parents[2] / "toys" / "toy_environment.py"
DEADLINE_S = 60.0


def never() -> ToyEnvironment:
    raise AssertionError("loaded before the mistake was found")


def test_a_taken_port_is_found_before_anything_is_loaded():
    with bind("127.0.0.1", 0) as taken, pytest.raises(UserError, match="in use; choose another --port"):
        serve(never, host="127.0.0.1", port=taken.getsockname()[1], settings=Settings())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.org"])
def test_others_may_reach_a_server_only_with_a_token(host: str):
    with pytest.raises(UserError, match="GAGPO_ENV_TOKEN"):
        serve(never, host=host, port=0, settings=Settings())


async def test_sigterm_lets_the_request_in_flight_finish(start: Start):
    server = start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    body = b'[{"episode_id":"e","task":"toy/train/00"}]'
    writer.write(b"POST /v1/episodes:reset HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n"
                 b"content-length: %d\r\n\r\n" % len(body))
    async with asyncio.timeout(DEADLINE_S):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100"), "the request is in the server's hands"
        writer.write(body[:10])
        server.process.send_signal(signal.SIGTERM)
        while await accepts(server.port):  # noqa: ASYNC110 - another process changes it
            await asyncio.sleep(0.01)
        writer.write(body[10:])
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.close()
    assert server.process.wait(timeout=DEADLINE_S) == -signal.SIGTERM


async def accepts(port: int) -> bool:
    """Whether somebody listens on this port."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionError:
        return False
    writer.close()
    return True


def test_a_server_does_not_outlive_the_process_that_started_it():
    start_one = f"subprocess.Popen([sys.executable, {str(TOY)!r}], stdout=2)"
    code = f"import subprocess, sys; print({start_one}.pid, flush=True); input()"
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stderr is not None
    child = int(parent.stdout.readline())
    assert any("serving toy" in line for line in parent.stderr), "the server ended before it was ready"
    parent.kill()
    parent.wait(timeout=DEADLINE_S)
    until = time.monotonic() + DEADLINE_S
    while not gone(child):
        assert time.monotonic() < until, os.kill(child, signal.SIGKILL)
        time.sleep(0.05)


def test_a_server_whose_parent_died_while_it_started_does_not_begin():
    """Only the id that the parent gave can show this: the kernel has given the process another parent."""
    serve(never, host="127.0.0.1", port=0, settings=Settings(), parent=os.getpid())


def test_a_reply_does_not_wait_for_a_delayed_ack(start: Start):
    """Head and body of a reply are two writes: 40 ms and more with Nagle's algorithm, much less without."""
    server = start()
    with httpx.Client(base_url=server.url, trust_env=False, timeout=DEADLINE_S) as http:
        def quick() -> bool:
            since = time.monotonic()
            http.post("/v1/episodes:reset", json=[{"episode_id": "e", "task": "toy/train/00"}])
            return time.monotonic() - since < 0.03

        wait_until(quick)  # one of many, since a busy machine may delay any


def test_a_terminal_gets_short_lines_and_each_thing_once():
    """A person reads stderr and stdout in one place, where programs read the URL on stdout."""
    master, slave = pty.openpty()
    process = subprocess.Popen([sys.executable, str(TOY)], stdout=slave, stderr=slave)
    os.close(slave)
    seen = b""
    try:
        until = time.monotonic() + DEADLINE_S
        while b"http://" not in seen:
            assert time.monotonic() < until, seen
            if select.select([master], [], [], 1)[0]:
                seen += os.read(master, 4096)
        process.terminate()
        process.wait(DEADLINE_S)
        with contextlib.suppress(OSError):  # all of it was read
            while data := os.read(master, 4096):
                seen += data
    finally:
        process.kill()
        os.close(master)
    lines = seen.decode().splitlines()
    assert [line.split("  ")[0][9:] for line in lines] == ["started", "serving", "draining", "drained"]
    assert "environment=toy" in lines[1]


def test_an_engine_fault_is_one_log_line_with_its_traceback(start: Start):
    server = start()
    body = [{"episode_id": "e", "task": "toy/train/broken"}]
    (answer,) = httpx.post(f"{server.url}/v1/episodes:reset", json=body, trust_env=False, timeout=60).json()
    assert answer["type"] == "env_fault"
    (line,) = [line for line in server.log() if line["level"] == "error"]
    assert (line["event"], line["task"], line["role"]) == ("the engine failed", "toy/train/broken", "environment")
    assert line["exception"].splitlines()[-1] == "services.errors.EnvFault: the game file is broken"


async def test_sigterm_is_told_from_the_first_line_to_the_last(start: Start):
    server = start()
    server.process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(server.process.wait, DEADLINE_S) == -signal.SIGTERM
    log = server.log()
    assert [line["event"] for line in log] == ["started", "serving", "draining", "drained"]
    assert (log[1]["environment"], log[1]["url"], log[1]["sessions"]) == ("toy", server.url, 1024)
    assert server.process.stdout.read() == "", "the URL was all"
TOYS = Path(__file__).parents[2] / "toys"


@pytest.mark.parametrize("threaded", [False, True], ids=["inline", "threaded"])
async def test_a_server_that_hangs_ends_with_one_line(start: Start, threaded: bool):
    server = start("--call-s", "2", *(["--threaded"] if threaded else []))
    async with EnvClient([server.url], timeout_s=60) as client:
        episode = client.episode("e", "toy/train/00")
        await episode.reset()
        await asyncio.sleep(3)  # an idle server does not hang
        stepping = asyncio.create_task(episode.step("hang"))
        assert await asyncio.to_thread(server.process.wait, 60) == 1
        stepping.cancel()
        with contextlib.suppress(asyncio.CancelledError, EnvFault):
            await stepping
    last = server.said().splitlines()[-1]
    assert last.startswith("error: one call of the environment has not ended within 2 s, in step (")
    assert "env.call_seconds" in last


def test_a_server_that_speaks_openenv_and_hangs_ends_too():
    """One hung game held the thread that plays all games, for good, and SIGTERM did not end the server."""
    command = [sys.executable, "-m", "deploy.cli", "serve-env", "--env", "toy_environment:SPEC", "--openenv",
               "--port", "0", "env.call_seconds=2"]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(TOYS), *filter(None, sys.path)])}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            game = OpenEnvGame(server.stdout.readline().split()[-1], begin=lambda _: {"task": "toy/train/00"})
            game.reset(seed=0)
            with pytest.raises(EnvFault, match="failed to step"):
                game.step("hang")
            server.terminate()
            assert server.wait(60) == 1
        finally:
            server.kill()
        last = server.stderr.read().splitlines()[-1]
    assert last.startswith("error: one call of the environment has not ended within 2 s, in step (")

GAME = """
from envservice.adapters.gymnasium import text_spec

class Game:
    def reset(self, *, seed):
        return "a corridor", {}

    def step(self, action):
        return "a corridor", 0.0, False, False, {}

SPEC = text_spec(Game, name="world", replayable=False)
"""


async def test_a_live_session_that_nobody_uses_for_agent_seconds_is_lost_and_the_line_names_the_key(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "world.py").write_text(GAME)
    monkeypatch.chdir(tmp_path)
    with served(["--env", "world:SPEC", "agent.seconds=0.5"]) as server:
        async with EnvClient([server.url]) as client:
            episode = client.episode("e", (await client.tasks("train")).tasks[0])
            await episode.reset()
            await asyncio.sleep(1)
            with pytest.raises(EnvFault, match=r"nobody uses for 0.5 s \(agent.seconds\)"):
                await episode.step("go")
