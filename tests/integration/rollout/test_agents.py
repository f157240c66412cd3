"""The user's own agents with the real engine and a real environment server, through OpenAI's own client."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from types import SimpleNamespace

import httpx
import numpy as np
import openai
import pytest
import pytest_asyncio
from byte_tokenizer import byte_tokenizer

from envservice.client.client import EnvClient
from envservice.text.plain_prompts import PLAIN
from rollout.agents.program import AgentProgram
from rollout.agents.runner import AgentRunner
from rollout.agents.worker_endpoint import endpoint
from rollout.engine.engine import Engine
from rollout.episode import Limits
from rollout.prompt_renderer import PromptRenderer
from services.config.tree import AgentSection
from services.errors import AgentFault, EnvFault
from services.records import Ticket

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]
SAID = {"role": "user", "content": "hello"}


@pytest_asyncio.fixture(loop_scope="session")
async def world(sampler: Engine, serve_toy):
    """Provides `play(agent)`, which plays one episode. `asked` has the prompts and answers of the engine."""
    asked: list[tuple[list[int], np.ndarray]] = []

    class Watched:
        """The shared engine, with a record of its calls."""

        @property
        def paused(self):
            return sampler.paused

        async def sample(self, prompt_ids, **named):
            sample = await sampler.sample(prompt_ids, **named)
            asked.append((list(prompt_ids), sample.ids))
            return sample

    _, url = serve_toy()
    text = PromptRenderer(template=PLAIN["full"](2), tokenizer=byte_tokenizer())
    async with EnvClient([url], timeout_s=10) as client, endpoint() as served:
        def play(agent, *, k=0, **settings):
            runner = AgentRunner(
                worker="w", agent=agent, engine=Watched(), env=client, env_engine="corridor 1", text=text,
                limits=Limits(prompt_tokens=256, response_tokens=8, reward_scale=10.0), endpoint=served,
                settings=AgentSection(name="x:y", **settings))
            return runner.play(Ticket(group="train/0", k=k, size=8, task="toy/train/00", seed=k, kind="train",
                                      temperature=1.0, max_steps=20), 1)

        yield SimpleNamespace(play=play, asked=asked, text=text, served=served)


def client_of(llm) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=llm.base_url, api_key=llm.api_key, max_retries=0)


async def ask(llm, *messages, **named):
    return await client_of(llm).chat.completions.create(model="policy", messages=list(messages) or [SAID], **named)


async def test_calls_of_openais_client_become_steps(world):
    """Token ids are those sampled, the reward goes to the call before it, and each call has the environment's state."""
    heard = []

    async def agent(task, llm, env):
        now = await env.reset()
        while not now.done:
            reply = await ask(llm, {"role": "user", "content": now.observation}, logprobs=True)
            heard.append(reply.choices[0])
            action = next(a for a in ("open door", "take key", "go on") if a in now.admissible_actions)
            now = await env.step(action)

    episode = await world.play(agent)
    assert (episode.won, episode.end, episode.total_reward) == (True, "won", 10.0)
    assert [step.reward for step in episode.steps] == [0.0] * (len(heard) - 1) + [10.0]
    assert episode.steps[0].observation == "You stand in a corridor. Place 0."
    assert episode.steps[-1].action == "open door"
    for step, choice, (prompt, ids) in zip(episode.steps, heard, world.asked, strict=True):
        assert step.prompt_ids.tolist() == prompt
        assert step.response_ids.tolist() == ids.tolist()
        assert [token.logprob for token in choice.logprobs.content] == pytest.approx(step.logprobs.tolist())
        assert step.valid == (choice.finish_reason == "stop")


async def test_a_stream_and_a_reward_by_http_without_an_environment(world):
    """The latest message is the state, unless a call names another state."""
    async def agent(task, llm, env):
        pieces = [chunk async for chunk in await ask(llm, stream=True, stream_options={"include_usage": True})]
        assert pieces[-1].usage.completion_tokens == len(llm.steps[0].response_ids)
        assert pieces[0].choices[0].delta.content == llm.steps[0].action
        await ask(llm, extra_headers={"x-gagpo-state": "the end"})
        async with httpx.AsyncClient(timeout=60, headers={"authorization": f"Bearer {llm.api_key}"}) as http:
            base = llm.base_url.removesuffix("/v1")
            reply = await http.post(f"{base}/reward", json={"reward": 0.5, "won": True})
            assert reply.json() == {"steps": 2, "total": 5.0}

    episode = await world.play(agent)
    assert [step.observation for step in episode.steps] == ["hello", "the end"]
    assert (episode.won, [step.reward for step in episode.steps]) == (True, [0.0, 5.0])


async def test_budgets_end_an_episode_with_its_true_reward(world):
    """One call too many, or a prompt that is too long. An error of the agent after that is no fault."""
    async def talks(task, llm, env):
        while True:
            await ask(llm)

    async def shouts(task, llm, env):
        await ask(llm)
        await ask(llm, {"role": "user", "content": "x" * 300})

    many = await world.play(talks, max_calls=3)
    assert (len(many.steps), many.end, many.won) == (3, "turns", False)
    long = await world.play(shouts)
    assert (len(long.steps), long.end) == (1, "context")


async def test_failures_are_faults_and_never_rewards(world):
    async def silent(task, llm, env):
        await env.reset()

    async def breaks(task, llm, env):
        await llm.chat([SAID])
        raise KeyError("lost")

    async def hangs(task, llm, env):
        await llm.chat([SAID])
        await asyncio.sleep(60)

    async def swallows(task, llm, env):
        await env.reset()
        await llm.chat([SAID])
        try:
            await env.step("crash")
        except EnvFault:
            llm.earn(1.0)

    for agent, fault, said in ((silent, AgentFault, "without a call"), (breaks, AgentFault, "KeyError: 'lost'"),
                               (hangs, AgentFault, "within 0.5 s"), (swallows, EnvFault, "the engine broke")):
        with pytest.raises(fault, match=said):
            await world.play(agent, seconds=0.5 if agent is hangs else 30)
    assert world.served.episodes == {}


@pytest.mark.parametrize(("named", "said"), [
    ({"n": 2}, "n is 2"), ({"top_logprobs": 2, "logprobs": True}, "top_logprobs is 2"),
    ({"response_format": {"type": "json_object"}}, "constrained")])
async def test_options_under_which_training_would_differ_from_sampling_are_refused(world, named, said):
    async def agent(task, llm, env):
        with pytest.raises(openai.BadRequestError, match=said):
            await ask(llm, **named)
        await ask(llm)

    assert len((await world.play(agent)).steps) == 1


PROGRAM = """
import json, os, urllib.request
from anthropic import Anthropic
from openai import OpenAI

def env(path, body=None):
    headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
    request = urllib.request.Request(os.environ["GAGPO_ENV_URL"] + path, json.dumps(body or {}).encode(), headers)
    return json.load(urllib.request.urlopen(request))

assert os.environ["GAGPO_TASK"] == "toy/train/00"
now = env("/reset")
while not now["done"]:
    said = [{"role": "user", "content": now["observation"]}]
    OpenAI().chat.completions.create(model="policy", messages=said)
    OpenAI().responses.create(model="policy", input=said)
    Anthropic().messages.create(model="policy", max_tokens=8, messages=said)
    listed = now["admissible_actions"]
    now = env("/step", {"action": next(a for a in ("open door", "take key", "go on") if a in listed)})
"""


async def test_a_program_of_its_own_is_an_agent(world):
    episode = await world.play(AgentProgram(sys.executable, "-c", PROGRAM), seconds=60)
    assert (episode.won, episode.total_reward) == (True, 10.0)
    assert [(step.prompt_ids.tolist(), step.response_ids.tolist()) for step in episode.steps] == [
        (prompt, ids.tolist()) for prompt, ids in world.asked]
    for number, step in enumerate(episode.steps):
        assert step.prompt_ids.tolist() == episode.steps[number - number % 3].prompt_ids.tolist(), "in three dialects"
    with pytest.raises(AgentFault, match="ended with status 3: no luck"):
        await world.play(AgentProgram(sys.executable, "-c", "import sys; print('no luck'); sys.exit(3)"))


async def test_a_client_that_does_everything_wrong_yields_only_rows_that_were_sampled(world):
    """Two episodes at once, with overlapping and dropped calls, edited histories, other episodes' keys and broken
    requests."""
    keys = []

    async def agent(task, llm, env):
        keys.append(llm.api_key)
        draw = random.Random(len(keys))
        history = [SAID]
        async with httpx.AsyncClient(base_url=llm.base_url.removesuffix("/v1"), timeout=60) as http:
            for _ in range(12):
                key = draw.choice([llm.api_key] * 3 + ["wrong"])
                body = {"messages": history, "model": "policy"}
                case = draw.randrange(5)
                if case == 0:
                    body = draw.choice([{}, {"messages": []}, {"messages": [{"content": "no role"}]}, {"messages": 3}])
                post = http.post("/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"})
                if case == 1:
                    await asyncio.gather(post, ask(llm, *history))
                elif case == 2:
                    with contextlib.suppress(TimeoutError, httpx.HTTPError):  # a refusal may be faster
                        await asyncio.wait_for(post, 0.001)
                else:
                    reply = await post
                    if reply.status_code == 200:
                        said = reply.json()["choices"][0]["message"]["content"]
                        history = [*history[-2:], {"role": "assistant", "content": said[::-1]}, SAID]
                        await http.post("/reward", json={"reward": 0.1}, headers={"authorization": f"Bearer {key}"})

    episodes = await asyncio.gather(world.play(agent, k=0), world.play(agent, k=1))
    sampled = {(tuple(prompt), tuple(ids.tolist())) for prompt, ids in world.asked}
    rows = [(tuple(step.prompt_ids.tolist()), tuple(step.response_ids.tolist()))
            for episode in episodes for step in episode.steps]
    assert len(rows) > 8
    assert set(rows) <= sampled
    for episode in episodes:
        assert all(len(step.logprobs) == len(step.response_ids) == step.spans[-1].end for step in episode.steps)
    assert world.served.episodes == {}
