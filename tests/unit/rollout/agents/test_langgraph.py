"""The examples of LangGraph and of verifiers, with the real packages in a Python of their own."""

import asyncio
import dataclasses
import json
import os
import sysconfig
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace
from scripted_engine import ScriptedEngine
from third_party import PYTHON, SITE, VERIFIERS, needs_third_party

from rollout.agents.program import AgentProgram
from rollout.agents.standalone_endpoint import ServedPolicy, agents_url
from rollout.agents.worker_endpoint import endpoint
from services.config.file import default_config
from services.errors import AgentFault
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
ROOT = Path(__file__).parents[4]
EXAMPLE = ROOT / "examples" / "verifiers_taskset"
PATH = [str(SITE), sysconfig.get_paths()["purelib"], str(ROOT / "tests" / "toys")]
"""Its own packages, behind them the numpy and pyarrow of this Python, and the environments of this test."""


@pytest.fixture
def play(counting, ticket):
    """`await play(answers, row, program, ...)`: an episode of that row, with these answers of the policy."""
    async def played(answers, row, program, *arguments, path=PATH):
        agent = AgentProgram("env", f"PYTHONPATH={os.pathsep.join(path)}", str(PYTHON), str(EXAMPLE / program),
                             *arguments)
        async with counting(answers, agent) as (runner, _), endpoint() as served:
            settings = runner.settings.model_copy(update={"seconds": 280})
            served_runner = dataclasses.replace(runner, endpoint=served, settings=settings)
            return await served_runner.play(replace(ticket, task=f"counter/train/{row:08d}"), 1)
    return played


async def test_its_turns_are_steps_and_its_rubric_rewards_the_last(play):
    episode = await play(["4", "6", "7"], 6, "environment_program.py", "verifiers_guess")
    assert [step.observation for step in episode.steps] == ["Guess a number from 1 to 7.", "too low", "too low"]
    assert [step.action for step in episode.steps] == ["4", "6", "7"]
    assert [step.reward for step in episode.steps] == [0.0, 0.0, 10.0], "env.reward_scale is 10"
    assert (episode.won, episode.end) == (True, "won")


async def test_its_tools_are_called_and_weighted_rewards_are_summed(play):
    calls = [json.dumps({"name": "add", "arguments": {"a": 3, "b": 1}}),
             json.dumps({"name": "double", "arguments": {"n": 4}})]
    episode = await play([*(f"<tool_call>{call}</tool_call>" for call in calls), "9"], 3, "environment_program.py",
                         "verifiers_tools")
    assert [step.observation for step in episode.steps] == ["What is twice the sum of 3 and 1?", "4", "8"]
    assert [step.reward for step in episode.steps] == [0.0, 0.0, 5.0], "it called, and its answer is wrong"
    assert episode.won, "half of the reward is verifiers' own threshold"


@pytest.mark.parametrize(("answers", "row", "arguments", "fault"), [
    (["1", "break"], 3, ["verifiers_guess"], "the sandbox is gone"),
    ([], 7, ["verifiers_guess"], "verifiers_guess has 7 rows, and no row 7: correct `sizes` in its spec"),
    ([], 3, ["verifiers_guess", '{"scored": "together"}'], "verifiers_guess scores several rollouts together"),
])
async def test_a_rollout_without_a_true_reward_is_a_fault_that_says_why(play, answers, row, arguments, fault):
    with pytest.raises(AgentFault, match=fault):
        await play(answers, row, "environment_program.py", *arguments)


@pytest.mark.skipif(not VERIFIERS.exists(), reason="verifiers 0.4 is not installed (scripts/setup --test)")
async def test_a_taskset_of_its_next_version_is_played_by_its_own_chat_loop(play):
    """The first answer is wrong, so the taskset's environment takes a second turn."""
    episode = await play(["4", "7"], 6, "taskset_program.py", "verifiers_taskset", path=[str(VERIFIERS), *PATH])
    assert [step.observation for step in episode.steps] == ["Guess a number from 1 to 7.", "too low"]
    assert [step.reward for step in episode.steps] == [0.0, 10.0]
    assert episode.won
