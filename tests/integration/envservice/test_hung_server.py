"""A server whose environment hangs ends itself, so that a supervisor starts it again."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envservice.adapters.openenv import OpenEnvGame
from envservice.client.client import EnvClient
from services.errors import EnvFault

Start = Callable[..., Any]
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
