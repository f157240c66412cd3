"""Both sides of the vLLM process, without vLLM. The other side of the client is a socket that never answers."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys

import pytest

from rollout.engine.process import Stream, VllmClient

CODE = """
import os, socket
from rollout.engine import process

async def serve(_):
    import setproctitle

    os.environ["FIRST"] = "set again"
    setproctitle.setproctitle("VLLM::EngineCore")
    print(open("/proc/self/cmdline").read().rstrip("\\0"), flush=True)

process._serve = serve
process.main(socket.socketpair()[0].detach())
"""


@pytest.mark.parametrize("first", ["FIRST", "SPT_NOENV"])
def test_engine_core_has_its_name_also_if_the_first_variable_was_set_again(first: str):
    """Operators look for it, and so do tests. The order of a worker's variables differs from start to start."""
    done = subprocess.run([sys.executable, "-c", CODE], env={first: "1", **os.environ}, capture_output=True,
                          text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "VLLM::EngineCore\n"), done.stderr


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
