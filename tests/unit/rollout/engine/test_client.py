"""The worker's side of its vLLM process. The other side here only hears: it is a socket that never answers."""

import asyncio
import socket
import subprocess
import sys

import pytest

from rollout.engine.client import VllmClient
from rollout.engine.stream import Stream


@pytest.fixture
def process() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", ""])


async def test_a_cancelled_call_is_forgotten(process):
    """An engine lives for as long as its run, and each call that an episode's end cancels would stay in memory."""
    ours, theirs = socket.socketpair()
    with theirs:
        client = VllmClient(process, await Stream.over(ours), lambda _: None)
        call = asyncio.create_task(client.call("generate"))
        await asyncio.sleep(0)
        assert client._calls
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert not client._calls
    await client.close()
