"""The example of docs/tasks/own-agent.md: its game can be won by the scripted player, and its agent reads the same."""

import random
from types import SimpleNamespace

import httpx
import pytest

from envservice.adapters.gymnasium import plays_twice
from envservice.base import Turn
from examples.tool_agent import agent as example
from examples.tool_agent.arithmetic import SPEC, Beginner, ToolPrompt
from learner.cold_start.scratch_model import train_tokenizer
from services.chat import ChatFormat
from services.config.tree import EnvSection

GAMES = SPEC.open(EnvSection(name="examples.tool_agent.arithmetic:SPEC", max_steps=4, prompt="tools"))


@pytest.mark.parametrize("task", GAMES.tasks("valid")[:8])
async def test_the_agent_sends_what_the_cold_start_was_trained_on(task, monkeypatch):
    """The prompts of the scripted player, turn by turn; and both win."""
    plays_twice(GAMES, task)
    template, session, turns, prompts = ToolPrompt(), GAMES.open(task), [], []
    first = now = session.reset()
    player = Beginner(first, random.Random(0))
    while not now.done:
        prompts.append(template.render(first, turns, now))
        action = template.parse(player.act(now)).action
        turns.append(Turn(observation=now.observation, action=action, admissible=True))
        now = session.step(action)
    assert now.won
    sent, played = [], GAMES.open(task)

    def answered(request: httpx.Request) -> httpx.Response:
        import msgspec

        body = msgspec.json.decode(request.content)
        sent.append(body["messages"][0]["content"])
        assert [tool["function"]["name"] for tool in body["tools"]] == ["add", "subtract", "divide", "answer"]
        name, *numbers = turns[len(sent) - 1].action.split()
        arguments = msgspec.json.encode(dict(zip("ab", map(int, numbers), strict=False))).decode()
        call = {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        return httpx.Response(200, json={
            "id": "1", "object": "chat.completion", "created": 0, "model": "policy",
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls", "logprobs": None}]})

    async def reset():
        return played.reset()

    async def step(action):
        return played.step(action)

    http = httpx.AsyncClient(transport=httpx.MockTransport(answered))
    monkeypatch.setattr(example, "CLIENT", example.CLIENT.with_options(http_client=http))
    llm = SimpleNamespace(base_url="http://x/v1", api_key="k")
    await example.agent(task, llm, SimpleNamespace(reset=reset, step=step))
    assert sent == prompts


def test_a_model_from_scratch_is_told_of_the_tools():
    """Its chat template shows none, and every call of the agent was refused."""
    first = GAMES.open(GAMES.tasks("train")[0]).reset()
    asked = [{"role": "user", "content": ToolPrompt().render(first, [], first)}]
    tokenizer = train_tokenizer([asked[0]["content"]], SPEC.stops, "numbered")
    assert "Question: " in ChatFormat(tokenizer=tokenizer).text(asked, example.TOOLS)
