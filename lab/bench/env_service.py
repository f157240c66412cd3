"""The environment service against one Ray actor per environment: same engine, games and actions, same concurrency.

    one step a request   64 keep-alive connections to one server process, with a minimal HTTP/1.1 client
    batched              the client of rollouts: elements that queue up during a request go in the next one
    reference            64 actors with one session each, all driven from one asyncio loop

Each way plays all sessions at once. A session waits for its answer before its next step. Resets are not timed. The
three take turns for ROUNDS rounds, and their medians are compared. Run it on a quiet machine: if other processes
compete for the cores, 64 actor processes get a larger share of them than one server. `one step a request` does not use
httpx, whose connection pool costs several times a step at this concurrency.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import msgspec

from deploy.launch.ray_cluster import private_ray
from envservice.base import Outcome
from envservice.client.client import EnvClient, Result
from envservice.registry import open_holding
from lab.bench.figures import Figure, Report, silent
from lab.bench.served import served
from services.config.tree import EnvSection

GAMES = "alfworld-gen/"
"""Prefix of the task ids of the games."""
SESSIONS = 64
STEPS = 20
ROUNDS = 5
START_S = 300
"""Seconds to wait for all actors to start."""
DEADLINE_S = 120.0
"""Deadline in seconds of one way in one round."""

Step = Callable[[str], Awaitable[Outcome]]


@dataclass(frozen=True, slots=True)
class Walk:
    """A game with a list of actions that do not end it."""

    task: str
    actions: list[str]
    last: str
    """The observation after the last action, with which every way must end."""


def run(report: Report = silent) -> list[Figure]:
    """Measures the steps per second of both ways over HTTP and of the actors."""
    walks = make_walks()
    with served(["--config", "alfworld-tiny"], without=["ALFWORLD_DATA"]) as server, _actors() as actors:
        rounds = asyncio.run(_take_turns(walks, server.url, actors, report))
    reference = statistics.median(rounds["actors"])
    return [
        Figure(name=name, value=(value := statistics.median(rounds[name])), unit="steps/s", reference=reference,
               ratio=value / reference)
        for name in ("one step a request", "batched")]


def make_walks() -> list[Walk]:
    """Returns random admissible actions on generated games, the same on every machine."""
    environment = open_holding(EnvSection(), GAMES)
    walks: list[Walk] = []
    for task in environment.tasks("train"):
        session, choose = environment.open(task), random.Random(task)
        now, actions = session.reset(), []
        while len(actions) < STEPS and not now.done:
            actions.append(choose.choice(now.admissible_actions))
            now = session.step(actions[-1])
        if not now.done:
            walks.append(Walk(task, actions, now.observation))
        if len(walks) == SESSIONS:
            return walks
    raise AssertionError("too few generated games")


async def _take_turns(walks: list[Walk], url: str, actors: list[Any], report: Report) -> dict[str, list[float]]:
    ways = {
        "actors": lambda _: _by_actors(walks, actors),
        "one step a request": lambda number: _one_by_one(walks, url, f"one/{number}"),
        "batched": lambda number: _batched(walks, url, f"batched/{number}"),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(ROUNDS):
        for place, (name, way) in enumerate(ways.items()):
            report(name, number * len(ways) + place, ROUNDS * len(ways))
            async with asyncio.timeout(DEADLINE_S):
                rates[name].append(len(walks) * STEPS / await way(number))
    return rates


async def _time(walks: list[Walk], steps: list[Step]) -> float:
    """Returns the seconds to play all walks at once. Raises AssertionError if a game ended with another observation."""

    async def walk(one: Walk, step: Step) -> None:
        now = None
        for action in one.actions:
            now = await step(action)
        assert now is not None
        assert now.observation == one.last, f"{one.task} went another way"

    since = time.perf_counter()
    await asyncio.gather(*(walk(one, step) for one, step in zip(walks, steps, strict=True)))
    return time.perf_counter() - since


async def _by_actors(walks: list[Walk], actors: list[Any]) -> float:
    await asyncio.gather(*(actor.reset.remote(one.task) for one, actor in zip(walks, actors, strict=True)))
    return await _time(walks, [actor.step.remote for actor in actors])


async def _batched(walks: list[Walk], url: str, name: str) -> float:
    async with EnvClient([url]) as client:
        episodes = [client.episode(f"{name}/{number}", one.task) for number, one in enumerate(walks)]
        await asyncio.gather(*(episode.reset() for episode in episodes))
        seconds = await _time(walks, [episode.step for episode in episodes])
        await asyncio.gather(*(episode.close() for episode in episodes))
    return seconds


async def _one_by_one(walks: list[Walk], url: str, name: str) -> float:
    players = [_Player(f"{name}/{number}", one.task) for number, one in enumerate(walks)]
    await asyncio.gather(*(player.reset(url) for player in players))
    seconds = await _time(walks, [player.step for player in players])
    await asyncio.gather(*(player.close() for player in players))
    return seconds


class _Player:
    """One episode over one keep-alive connection."""

    def __init__(self, episode_id: str, task: str) -> None:
        self._ids = {"episode_id": episode_id, "task": task}
        self._actions: list[str] = []
        self._digest = ""
        self._decoder = msgspec.json.Decoder(list[Result])

    async def reset(self, url: str) -> None:
        where = urlsplit(url)
        self._reader, self._writer = await asyncio.open_connection(where.hostname, where.port)
        self._digest = self._decoder.decode(await self._post("reset", self._ids))[0].digest

    async def step(self, action: str) -> Result:
        told = {**self._ids, "actions": self._actions, "action": action, "digest": self._digest}
        (result,) = self._decoder.decode(await self._post("step", told))
        self._actions.append(action)
        self._digest = result.digest
        return result

    async def close(self) -> None:
        await self._post("close", {"episode_id": self._ids["episode_id"]})
        self._writer.close()
        await self._writer.wait_closed()

    async def _post(self, verb: str, element: Mapping[str, object]) -> bytes:
        body = msgspec.json.encode([element])
        head = f"POST /v1/episodes:{verb} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        assert answer.startswith(b"http/1.1 200"), answer
        return await self._reader.readexactly(int(answer.partition(b"content-length:")[2].partition(b"\r\n")[0]))


@contextlib.contextmanager
def _actors() -> Iterator[list[Any]]:
    """Starts SESSIONS actors in a private Ray."""
    private = private_ray(
        num_cpus=1, log_to_driver=False, object_store_memory=100 * 2**20, logging_level=logging.ERROR,
        _system_config={"worker_register_timeout_seconds": START_S})
    # Ray warns on stdout that there are many more actors than cores, which is intended here.
    with private, contextlib.redirect_stdout(io.StringIO()):
        import ray

        try:
            actor: Any = ray.remote(num_cpus=0)(EnvironmentActor)
            actors = [actor.remote() for _ in range(SESSIONS)]
            ray.get([one.ready.remote() for one in actors], timeout=START_S)
            yield actors
        finally:
            ray.shutdown()


class EnvironmentActor:
    """An environment inside an actor, as a trainer without an environment service would have it."""

    def __init__(self) -> None:
        self._environment = open_holding(EnvSection(), GAMES)

    def ready(self) -> bool:
        return True

    def reset(self, task: str) -> Outcome:
        self._session = self._environment.open(task)
        return self._session.reset()

    def step(self, action: str) -> Outcome:
        return self._session.step(action)
