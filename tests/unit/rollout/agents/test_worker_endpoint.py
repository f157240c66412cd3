"""The threads that a worker shares with the agents that it serves."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import threading
import time
from pathlib import Path

import pytest
import uvloop
from scripted_engine import ScriptedEngine

from envservice.adapters.openenv import openenv_tools_spec
from envservice.client.client import EnvClient
from rollout.agents.worker_endpoint import agent_runner, endpoint, logging_blocks
from rollout.episode import Limits
from services.config.file import default_config
from services.errors import EnvFault

AWAY = openenv_tools_spec("http://127.0.0.1:1", name="away")


def runner_of(config, env, text):
    shared = {"worker": "w", "engine": ScriptedEngine(text, []), "env": env, "env_engine": "none 1", "text": text,
              "limits": Limits(prompt_tokens=64, response_tokens=8, reward_scale=1.0)}
    return agent_runner(config.agent, shared, Path("model"), env=config.env.name, slots=config.rollout.slots)


async def test_agents_that_wait_in_threads_leave_some_to_the_worker(text):
    """As blocking frameworks do: each waits for answers of this loop, which needs threads of its own to give them."""
    config = default_config(["agent.name=rollout.agents.conversation:agent", "rollout.slots=40"])
    answered = threading.Event()
    async with EnvClient(["http://127.0.0.1:1"]) as env, runner_of(config, env, text):
        agents = [asyncio.create_task(asyncio.to_thread(answered.wait)) for _ in range(config.rollout.slots)]
        await asyncio.sleep(0)  # until each has asked for a thread
        try:
            async with asyncio.timeout(5):
                assert await asyncio.to_thread(int) == 0
        finally:
            answered.set()
            await asyncio.gather(*agents)


async def test_an_agent_that_forks_ends_its_child_by_a_signal_that_its_worker_does_not_hear():
    """As gagpo eval does, whose handler of SIGTERM the child would have."""
    heard, loop, before = [], asyncio.get_running_loop(), signal.getsignal(signal.SIGTERM)
    loop.add_signal_handler(signal.SIGTERM, heard.append, "SIGTERM")
    async with endpoint():
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
        child.terminate()
        await asyncio.to_thread(child.join, 20)
        ended = not child.is_alive()
        child.kill()
    loop.remove_signal_handler(signal.SIGTERM)
    signal.signal(signal.SIGTERM, before)
    assert ended
    assert heard == []


async def test_a_worker_whose_tool_server_is_away_has_a_fault_and_is_started_again(text):
    """A mistake of the user would end the run."""
    config = default_config(["agent.name=rollout.agents.conversation:agent", f"env.name={__name__}:AWAY"])
    async with EnvClient(["http://127.0.0.1:1"]) as env:
        with pytest.raises(EnvFault, match="ConnectionRefusedError"):
            async with runner_of(config, env, text):
                pass


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_blocking_call_is_logged_once_with_its_place(counting, ticket, loop):
    """As a client that blocks in an async function: it waits until it gives up, and the loop cannot answer it. Ray runs
    workers on uvloop, which has no Python frames of its own."""
    lines, done = [], []

    async def blocks(_task, llm, _env):
        await llm.chat([{"role": "user", "content": "x"}])
        deadline = time.monotonic() + 60
        while not lines and time.monotonic() < deadline:
            time.sleep(0.05)  # noqa: ASYNC251 - this is the mistake
        time.sleep(0.3)  # noqa: ASYNC251
        done.append(1)

    async def plays():
        async with counting(["so"], blocks) as (runner, _):
            with logging_blocks(lines.append, blocked_s=1.0):
                await runner.play(ticket, 1)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(plays())
    assert (len(lines), done) == (1, [1])
    assert "the event loop has not run for 1 s, in blocks (" in lines[0]
    assert "test_worker_endpoint.py:" in lines[0]


async def test_an_agent_that_awaits_is_not_logged():
    lines = []
    with logging_blocks(lines.append, blocked_s=5.0):
        await asyncio.sleep(1.5)
    assert lines == []
