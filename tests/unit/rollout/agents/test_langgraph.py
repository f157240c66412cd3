"""The example of a LangGraph agent, with the real packages in a Python of their own: in a run, and with serve-agent."""

import asyncio
import dataclasses
import os
from pathlib import Path

import httpx
import pytest
from scripted_engine import ScriptedEngine
from third_party import PYTHON, needs_third_party

from rollout.agents.program import AgentProgram
from rollout.agents.standalone_endpoint import ServedPolicy, agents_url
from rollout.agents.worker_endpoint import endpoint
from services.config.file import default_config
from services.http.server import bind

pytestmark = [pytest.mark.long, needs_third_party]
GRAPH = str(Path(__file__).parents[4] / "examples" / "langgraph_agent.py")
ANSWERS = ['<tool_call>{"name": "add", "arguments": {"n": 2}}</tool_call>', "<think>\nhm\n</think>\n\nsix, please",
           '<tool_call>{"name": "double", "arguments": {}}</tool_call>']
"""The counter goes 1, 3, 3 (a text calls no tool), 6."""


async def test_its_calls_are_the_steps_of_an_episode_of_a_run(counting, ticket):
    async with counting(ANSWERS, AgentProgram(str(PYTHON), GRAPH)) as (runner, _), endpoint() as served:
        settings = runner.settings.model_copy(update={"seconds": 280})
        episode = await dataclasses.replace(runner, endpoint=served, settings=settings).play(ticket, 1)
    assert (episode.won, episode.end, len(episode.steps)) == (True, "won", 3)
    assert [step.reward for step in episode.steps] == pytest.approx([2.5, 0.0, 12.5])
    assert [step.observation for step in episode.steps] == ["The counter is 1. Make it 6.", "3", "Call a tool."]
    assert episode.steps[1].action == "six, please"
    for step, (prompt, ids) in zip(episode.steps, runner.engine.asked, strict=True):
        assert step.prompt_ids.tolist() == prompt
        assert step.response_ids.tolist() == ids


async def test_it_plays_an_episode_of_serve_agent(text):
    policy = ServedPolicy(config=default_config(["env.name=counter:SPEC"]), model=Path(), host="127.0.0.1", port=0,
                          token=None, with_env=True, out=None)
    serving = agents_url(policy, text, ScriptedEngine(text, ANSWERS), bind("127.0.0.1", 0))
    async with serving as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
        opened = (await http.post("/episodes", json={"task": "counter/train/00000000"})).json()
        variables = {"OPENAI_BASE_URL": opened["base_url"], "OPENAI_API_KEY": opened["api_key"],
                "GAGPO_ENV_URL": f"{url}/env"}
        program = await asyncio.create_subprocess_exec(PYTHON, GRAPH, env=os.environ | variables)
        assert await program.wait() == 0
        ended = await http.delete("/episodes", headers={"authorization": f"Bearer {opened['api_key']}"})
    assert ended.json() == {"task": "counter/train/00000000", "won": True, "end": "won", "calls": 3, "reward": 1.5}
