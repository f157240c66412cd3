"""The service over real ALFWorld games: through `gagpo serve-env` as users start it, and over the reference engine."""

import asyncio
import dataclasses
import importlib.util
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from envservice.alfworld.environment import AlfworldEnvironment
from envservice.alfworld.tasks import GeneratedGames
from envservice.client.client import EnvClient
from envservice.server.app import Settings, create_app

STEPS = 12


@contextmanager
def serve_env(port: int) -> Iterator[str]:
    """Starts a server as users do, and kills it at the end."""
    command = [sys.executable, "-m", "deploy.cli", "serve-env", "--config", "alfworld-tiny", "--port", str(port)]
    environ = {name: value for name, value in os.environ.items() if name not in ("ALFWORLD_DATA", "GAGPO_ENV_TOKEN")}
    command += ["--exit-with-parent", str(os.getpid())]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().rpartition(" on ")[2].strip()
    finally:
        process.kill()
        process.wait(timeout=60)


def walk(environment: AlfworldEnvironment, task: str) -> tuple[list[str], list[dict[str, Any]]]:
    """Returns actions, also bad ones, and the engine's own answers to them."""
    session, choose = environment.open(task), random.Random(task)
    now, actions = session.reset(), []
    outcomes = [dataclasses.asdict(now)]
    while len(actions) < STEPS and not now.done:
        actions.append(choose.choice([*now.admissible_actions, "dance", "", "go to  fridge 99"]))
        now = session.step(actions[-1])
        outcomes.append(dataclasses.asdict(now))
    return actions, outcomes


async def test_games_survive_the_death_of_their_server_to_the_letter():
    environment = AlfworldEnvironment(GeneratedGames())
    tasks = environment.tasks("train")[:: len(environment.tasks("train")) // 8]
    walks = [walk(environment, task) for task in tasks]
    with serve_env(0) as url:
        client = EnvClient([url], timeout_s=60)
        episodes = [client.episode(task, task) for task in tasks]
        seen = [[await episode.reset()] for episode in episodes]
        for step in range(STEPS // 2):
            await asyncio.gather(*(take(*one, step) for one in zip(episodes, walks, seen, strict=True)))
    with serve_env(int(url.rpartition(":")[2])):
        for step in range(STEPS // 2, STEPS):
            await asyncio.gather(*(take(*one, step) for one in zip(episodes, walks, seen, strict=True)))
        await client.close()
    for (actions, outcomes), results, episode in zip(walks, seen, episodes, strict=True):
        rows = [dataclasses.asdict(result) for result in results]
        assert [{key: row[key] for key in outcomes[0]} for row in rows] == outcomes
        assert episode.replays == int(len(actions) > STEPS // 2)


async def take(episode: Any, walked: Any, results: list[Any], step: int) -> None:
    """Takes one step of one walk, if the walk is long enough."""
    if step < len(walked[0]):
        results.append(await episode.step(walked[0][step]))


@pytest.mark.skipif(importlib.util.find_spec("textworld") is None, reason="the reference engine is not installed")
async def test_the_reference_engine_is_served_from_its_thread_with_the_same_texts():
    own = AlfworldEnvironment(GeneratedGames())
    task = own.tasks("valid")[0]
    actions, outcomes = walk(own, task)
    app = create_app(AlfworldEnvironment(GeneratedGames(), engine="textworld"), Settings(threaded=True))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://env", timeout=60) as http:
        element = {"episode_id": "e", "task": task}
        (now,) = (await http.post("/v1/episodes:reset", json=[element])).json()
        assert now["digest"].startswith("textworld@alfworld ")
        for step, action in enumerate(actions[:2]):
            told = {**element, "actions": actions[:step], "action": action, "digest": now["digest"]}
            stepping = asyncio.create_task(http.post("/v1/episodes:step", json=[told]))
            assert (await http.get("/healthz")).status_code == 200
            (now,) = (await stepping).json()
            assert now["observation"] == outcomes[step + 1]["observation"]
            assert now["admissible_actions"] == outcomes[step + 1]["admissible_actions"]
