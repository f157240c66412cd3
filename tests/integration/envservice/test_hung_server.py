"""A server whose environment hangs ends itself, so that a supervisor starts it again."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from envservice.client.client import EnvClient
from services.errors import EnvFault

Start = Callable[..., Any]


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
