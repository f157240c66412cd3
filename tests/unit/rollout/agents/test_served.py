"""The threads that a worker shares with the agents that it serves."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from scripted_engine import ScriptedEngine

from envservice.client.client import EnvClient
from rollout.agents.served import agent_runner
from rollout.episode import Limits
from services.config.file import default_config


async def test_agents_that_wait_in_threads_leave_some_to_the_worker(text):
    """As blocking frameworks do: each waits for answers of this loop, which needs threads of its own to give them."""
    config = default_config(["agent.name=rollout.agents.conversation:agent", "rollout.slots=40"])
    answered = threading.Event()
    async with EnvClient(["http://127.0.0.1:1"]) as env:
        shared = {"worker": "w", "engine": ScriptedEngine(text, []), "env": env, "env_engine": "none 1", "text": text,
                  "limits": Limits(prompt_tokens=64, response_tokens=8, reward_scale=1.0)}
        async with agent_runner(config, shared, Path("model")):
            agents = [asyncio.create_task(asyncio.to_thread(answered.wait)) for _ in range(config.rollout.slots)]
            await asyncio.sleep(0)  # until each has asked for a thread
            try:
                async with asyncio.timeout(5):
                    assert await asyncio.to_thread(int) == 0
            finally:
                answered.set()
                await asyncio.gather(*agents)
