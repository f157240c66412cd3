"""Agents without vLLM: a scripted engine, a real environment server in a thread, the real endpoint's application."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
from byte_tokenizer import byte_tokenizer
from counter import SPEC, counter_spec
from scripted_engine import ScriptedEngine

from envservice.client.client import EnvClient
from envservice.server.app import Settings, create_app
from envservice.text.plain_prompts import PLAIN
from rollout.agents.runner import AgentRunner, Endpoint
from rollout.episode import Limits
from rollout.prompt_renderer import PromptRenderer
from services.config.env import EnvSection
from services.config.tree import AgentSection
from services.http.server import bind, serving_in_thread
from services.records import Ticket


@pytest.fixture(scope="session")
def text() -> PromptRenderer:
    return PromptRenderer(template=PLAIN["full"](2), tokenizer=byte_tokenizer())


@pytest.fixture
def counting(text):
    """`async with counting(answers) as (runner, store)`: plays the counter with this script; the server's sessions."""
    @asynccontextmanager
    async def made(answers, agent, *, replayable=True):
        app = create_app(counter_spec(replayable=replayable).open(EnvSection(name="counter:SPEC")), Settings())
        listener = bind("127.0.0.1", 0)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        engine = ScriptedEngine(text, answers)
        with serving_in_thread(app, listener, local_only=True, name="counter"):
            async with EnvClient([url], timeout_s=20) as client:
                yield AgentRunner(
                    worker="w", agent=agent, engine=engine, env=client, env_engine="counter 1", text=text,
                    limits=Limits(prompt_tokens=4096, response_tokens=256, reward_scale=10.0), endpoint=Endpoint(),
                    settings=AgentSection(name="x:y", seconds=60), tools=SPEC.tools()), app.state.batches
    return made


@pytest.fixture
def ticket() -> Ticket:
    return Ticket(group="train/0", k=0, size=1, task="counter/train/00000000", seed=0, kind="train", temperature=1.0,
                  max_steps=8)
