"""Answers that are larger than the client takes: only the episode that is the cause ends, and at once.

The server is a real one over HTTP; steps that are asked for together go in few requests.
"""

import asyncio
from collections.abc import Iterator

import pytest
from toy_environment import ToyEnvironment, ToySession

from envservice.base import Outcome
from envservice.client import request_batching
from envservice.client.client import EnvClient, Result
from envservice.server.app import Settings, create_app
from services.errors import EnvFault
from services.http.server import bind, serving_in_thread

EPISODES = 12
SIZES = {"mumble": 400_000, "shout": 2_000_000}
"""Characters of the observation after these actions."""


class LoudSession(ToySession):
    def step(self, action: str) -> Outcome:
        if action in SIZES:
            return Outcome(observation="x" * SIZES[action], admissible_actions=[])
        return super().step(action)


class LoudEnvironment(ToyEnvironment):
    def open(self, task: str) -> ToySession:
        return LoudSession(task, "")


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server's address. One answer may have 1 MiB, and 64 KiB more for each element."""
    monkeypatch.setattr(request_batching, "ANSWER_BYTES", 1 << 20)
    monkeypatch.setattr(request_batching, "ELEMENT_BYTES", 1 << 16)
    listener = bind("127.0.0.1", 0)
    with serving_in_thread(create_app(LoudEnvironment(), Settings()), listener, local_only=True, name="environment"):
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


async def steps_together(url: str, actions: list[str]) -> list[Result | BaseException]:
    async with EnvClient([url], timeout_s=60, outage_s=1800) as client, asyncio.timeout(30):
        episodes = [client.episode(str(k), "toy/train/00") for k in range(len(actions))]
        await asyncio.gather(*(episode.reset() for episode in episodes))
        return await asyncio.gather(
            *(episode.step(action) for episode, action in zip(episodes, actions, strict=True)), return_exceptions=True)


async def test_an_answer_that_is_too_large_is_a_fault_of_its_own_episode_alone(url: str):
    culprit, *others = await steps_together(url, ["shout", *["wait"] * (EPISODES - 1)])
    assert isinstance(culprit, EnvFault)
    assert str(culprit) == f"{url}/v1/episodes:step: its answer has more than 1 MiB"
    assert [getattr(other, "observation", other) for other in others] == ["Nothing happens. Place 0."] * (EPISODES - 1)


async def test_answers_that_are_too_large_only_together_are_all_taken(url: str):
    results = await steps_together(url, ["mumble"] * EPISODES)
    assert [len(result.observation) for result in results if isinstance(result, Result)] == [400_000] * EPISODES
