"""A game may fork, as `multiprocessing` does on Linux. Its children are no part of the server."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envservice.adapters.openenv import OpenEnvGame
from envservice.client.client import EnvClient

Start = Callable[..., Any]
TOYS = Path(__file__).parents[2] / "toys"


@pytest.mark.parametrize("threaded", [False, True], ids=["inline", "threaded"])
async def test_a_game_ends_its_child_and_the_server_goes_on(start: Start, threaded: bool):
    """The child heard SIGTERM by the server's handler, which only told a copy of the server to end."""
    server = start(*(["--threaded"] if threaded else []))
    async with EnvClient([server.url], timeout_s=60) as client:
        episode = client.episode("e", "toy/train/00")
        await episode.reset()
        for _ in range(3):
            assert (await episode.step("fork")).observation.startswith("Alive: False.")
    assert server.process.poll() is None


def test_a_game_ends_its_child_and_the_server_that_speaks_openenv_goes_on():
    """The child's SIGTERM came through the pipe that wakes the server's loop, and ended the server."""
    command = [sys.executable, "-m", "deploy.cli", "serve-env", "--env", "toy_environment:SPEC", "--openenv",
               "--port", "0"]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(TOYS), *filter(None, sys.path)])}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as server:
        try:
            game = OpenEnvGame(server.stdout.readline().split()[-1], begin=lambda _: {"task": "toy/train/00"})
            game.reset(seed=0)
            for _ in range(3):
                assert game.step("fork")[0].startswith("Alive: False.")
            server.terminate()
            assert server.wait(60) == 143
        finally:
            server.kill()


async def test_a_child_that_outlives_its_server_holds_neither_port_nor_connections(start: Start):
    """Clients waited for the child, which answers nothing, and no server could listen at the address again."""
    server = start()
    async with EnvClient([server.url], timeout_s=60) as client:
        episode = client.episode("e", "toy/train/00")
        await episode.reset()
        assert (await episode.step("leave a child")).observation.startswith("Alive: True.")
        server.kill()
        start(port=server.port)
        assert (await episode.step("look")).observation.startswith("Nothing happens.")
