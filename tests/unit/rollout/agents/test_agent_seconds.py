"""The time that an agent has (agent.seconds), and waits that are not its own."""

import asyncio
import contextlib
import dataclasses

import pytest
from counter import counter_spec
from ports import likely_port

from envservice.client.client import EnvClient
from envservice.server.app import Settings, create_app
from services.config.env import EnvSection
from services.config.tree import AgentSection
from services.errors import AgentFault
from services.http.server import bind, serving_in_thread

AWAY_S = 3.0
"""How long each wait lasts. The agents have a second less."""
HASTY = AgentSection(name="x:y", seconds=AWAY_S - 1)
SAID = [{"role": "user", "content": "x"}]


@pytest.fixture
def server():
    """Starts an environment server at the same port as before. The end of the stack that it returns ends the server."""
    port = likely_port()

    def start() -> contextlib.ExitStack:
        app = create_app(counter_spec().open(EnvSection(name="counter:SPEC")), Settings())
        stack = contextlib.ExitStack()
        stack.enter_context(serving_in_thread(app, bind("127.0.0.1", port), local_only=True, name="counter"))
        started.append(stack)
        return stack

    started: list[contextlib.ExitStack] = []
    start.url = f"http://127.0.0.1:{port}"
    yield start
    for stack in started:
        stack.close()


async def test_an_agent_that_waits_for_servers_that_are_away_loses_no_time(counting, ticket, server):
    """It failed, so an outage that env.outage_seconds allows used up its attempts."""
    first = server()

    async def acts(_task, llm, env):
        await env.reset()
        await llm.chat(SAID)
        await asyncio.to_thread(first.close)
        asyncio.get_running_loop().call_later(AWAY_S, server)
        await env.call("add", {"n": 5})

    async with counting(["so"], acts) as (runner, _), EnvClient([server.url], timeout_s=20) as client:
        episode = await dataclasses.replace(runner, env=client, settings=HASTY).play(ticket, 1)
    assert (episode.won, episode.replays, episode.seconds > AWAY_S) == (True, 1, True)


async def test_an_agent_that_asks_no_server_loses_time_also_while_all_are_away(counting, ticket, server):
    """Nobody may ask them again: what was known of them last would give it time without end."""
    first = server()

    async def hangs(_task, llm, env):
        await env.reset()
        await asyncio.to_thread(first.close)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await env.call("add", {"n": 5})
        await asyncio.sleep(60)

    async with counting([], hangs) as (runner, _), EnvClient([server.url], timeout_s=20) as client:
        with pytest.raises(AgentFault, match=r"did not end .* within 2 s \(agent.seconds\)"):
            await dataclasses.replace(runner, env=client, settings=HASTY).play(ticket, 1)
        assert client.away


async def test_an_agent_loses_no_time_while_the_engine_is_paused(counting, ticket):
    """As while a learner uses the GPU of both, which may take many minutes."""
    async def waits(_task, llm, env):
        llm.engine.paused = True
        await asyncio.sleep(AWAY_S)
        llm.engine.paused = False
        await llm.chat(SAID)

    async with counting(["so"], waits) as (runner, _):
        episode = await dataclasses.replace(runner, settings=HASTY).play(ticket, 1)
    assert len(episode.steps) == 1
