"""The first agent of docs/tasks/own-agent.md wins if the model answers well: it shows the game and reads actions."""

import random
import re
from pathlib import Path
from types import SimpleNamespace

import httpx
import msgspec
import pytest

from deploy.launch.planning.task_sets import open_task_sets
from deploy.runs.configs import load_config
from envservice.alfworld.environment import AlfworldEnvironment
from envservice.alfworld.tasks import GeneratedGames
from envservice.alfworld.teacher import TEACHER
from envservice.base import Session
from services.config.sections import SftSection

PAGE = (Path(__file__).parents[3] / "docs/tasks/own-agent.md").read_text()
GAMES = AlfworldEnvironment(GeneratedGames())


def agent_of_the_page(http: httpx.AsyncClient):
    """Returns the page's function, whose client asks `http`."""
    code = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[0]
    module: dict[str, object] = {}
    exec(code, module)
    module["CLIENT"] = module["CLIENT"].with_options(http_client=http)
    return module["agent"]


class World:
    """A game as agents see it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.now = None

    async def reset(self):
        self.now = self._session.reset()
        return self.now

    async def step(self, action: str):
        assert action in self.now.admissible_actions
        self.now = self._session.step(action)
        return self.now


@pytest.mark.parametrize("task", GAMES.tasks("valid")[:6])
async def test_a_model_that_answers_in_tags_wins_by_the_agent_of_the_page(task: str):
    world, prompts = World(GAMES.open(task)), []
    first = GAMES.open(task).reset()
    player = TEACHER.player(first, random.Random(0), SftSection())

    def answered(request: httpx.Request) -> httpx.Response:
        prompts.append(msgspec.json.decode(request.content)["messages"][0]["content"])
        message = {"role": "assistant", "content": player.act(world.now)}
        return httpx.Response(200, json={
            "id": "1", "object": "chat.completion", "created": 0, "model": "policy",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}]})

    http = httpx.AsyncClient(transport=httpx.MockTransport(answered))
    await agent_of_the_page(http)(task, SimpleNamespace(base_url="http://x/v1", api_key="k"), world)
    assert world.now.won
    goal = first.observation.partition("Your task is to: ")[2].strip()
    assert all(goal in prompt and "<action>" in prompt for prompt in prompts), "each prompt is all that the model reads"
    assert all(action in prompts[0] for action in first.admissible_actions)


def test_the_taskset_of_the_example_has_the_games_that_its_command_asks_for(monkeypatch):
    folder = Path(__file__).parents[3] / "examples" / "verifiers_taskset"
    monkeypatch.syspath_prepend(folder)
    overrides = re.search(r"env\.name=hub:SPEC .*", (folder / "hub.py").read_text())[0].split()
    games = open_task_sets(load_config("alfworld-1.5b", overrides))
    assert (len(games.train), len(games.validation), len(games.heldout)) == (800, 100, 0)


def test_the_page_is_short():
    """Fields and limits are in the reference."""
    assert len(PAGE.split()) <= 600
