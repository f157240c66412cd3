"""2,000 games at once: 64 rollout workers with simulated samplers on real environment servers, Redis and controller.

Each turn waits for an answer of a log-normal latency, then takes a listed action in a real game of ALFWorld. Nothing
may be lost or counted twice, however long it goes on.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from envservice.client.client import EnvClient
from lab.bench.figures import Figure, Report, silent
from lab.bench.served import served
from lab.bench.simulated import InThread, SimulatedRun, TimedStore, redis_cpu, simulated_worker, unaccounted
from rollout.worker import RolloutWorker
from services.config.sections import RolloutSection
from services.config.tree import Config
from services.errors import UserError
from services.store.redis_server import private_redis

MINUTES = 30.0
WORKERS, SLOTS, SERVERS = 64, 32, 2
LATENCY_S = 8.0
"""Median seconds of an answer: 2,048 games then take about 200 turns a second."""
GROUPS, GROUP_SIZE, STALENESS, MAX_STEPS = 128, 8, 2, 10
"""Sizes at which the tickets of three learner steps, 3,072, are out at once, so that slots are the limit."""
CALL_S = 120.0
LOOK_S = 2.0
STARTS_S = 0.1
"""Between two looks whether the first game has begun."""


def run(report: Report = silent, *, minutes: float = MINUTES) -> list[Figure]:
    """Plays for `minutes`, then until the started games have ended."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gagpo-bench-")))
        url = stack.enter_context(private_redis(folder / "redis"))
        sessions = -(-WORKERS * SLOTS // SERVERS) + WORKERS  # a session may outlive its episode by a moment
        servers = [stack.enter_context(served(["--env", "alfworld", f"env.max_sessions={2 * sessions}"],
                                              without=["ALFWORLD_DATA"])) for _ in range(SERVERS)]
        if min(server.sessions for server in servers) < sessions:
            raise UserError(f"a server of this machine holds {min(server.sessions for server in servers)} games, and "
                            f"the bench needs {sessions}", "run it where there is more memory")
        return asyncio.run(_load(url, [server.url for server in servers], folder, 60 * minutes, report))


async def _load(url: str, urls: list[str], folder: Path, seconds: float, report: Report) -> list[Figure]:
    async with EnvClient(urls, timeout_s=CALL_S) as client:
        tasks = (await client.tasks(next(iter((await client.info()).splits)))).tasks
    config = Config.model_validate({
        "name": "load", "steps": 1_000_000, "eval": {"every": 0}, "env": {"max_steps": MAX_STEPS},
        "learner": {"groups_per_step": GROUPS, "group_size": GROUP_SIZE, "staleness": STALENESS}})
    made = SimulatedRun(url, config, tasks, folder)
    threads = [InThread("controller", made.controller().tick), InThread("learner", made.learn, pause_s=0)]
    stores = [TimedStore(url, config.name) for _ in range(WORKERS)]
    before, began, own = redis_cpu(made.store), time.monotonic(), sum(os.times()[:2])
    for thread in threads:
        thread.start()
    playing = await _play(stores, urls, seconds, report)
    made.end()
    for thread in threads:
        thread.stop()
    took = [took for store in stores for took, _ in store.commits]
    spent, groups = time.monotonic() - began, len(took) / GROUP_SIZE
    accepted = sum(said == "accepted" for store in stores for _, said in store.commits)
    books = unaccounted(made.store, accepted, GROUP_SIZE)
    return [
        Figure(name="games at once, median", value=statistics.median(playing), unit=""),
        Figure(name="games at once, most", value=max(playing), unit=""),
        Figure(name="episodes", value=len(took), unit=""),
        Figure(name="episodes", value=len(took) / spent, unit="episodes/s"),
        Figure(name="commit, median", value=1000 * statistics.median(took), unit="ms"),
        Figure(name="commit, 99th percentile", value=1000 * statistics.quantiles(took, n=100)[98], unit="ms"),
        Figure(name="CPU per group, Redis", value=1000 * (redis_cpu(made.store) - before) / groups, unit="ms"),
        Figure(name="CPU per group, controller", value=1000 * threads[0].cpu_s / groups, unit="ms"),
        Figure(name="CPU of workers, learner and controller", value=sum(os.times()[:2]) - own, unit="s"),
        Figure(name="groups dropped", value=made.store.counts().dropped, unit=""),
        *(Figure(name=what, value=number, unit="") for what, number in books.items()),
    ]


async def _play(stores: list[TimedStore], urls: list[str], seconds: float, report: Report) -> list[int]:
    """Plays for so long after the first game began, and lets all games end. Returns their number at each look."""
    settings, playing = RolloutSection(slots=SLOTS), list[int]()
    async with asyncio.TaskGroup() as group:
        workers = [_worker(f"rollout-{index}", store, urls, settings) for index, store in enumerate(stores)]
        lives = [group.create_task(worker.run()) for worker, _ in workers]
        while not any(worker.playing for worker, _ in workers):  # noqa: ASYNC110 - it looks seldom
            await asyncio.sleep(STARTS_S)
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(LOOK_S, left))
            playing.append(sum(worker.playing for worker, _ in workers))
            report(f"{playing[-1]} games", int((seconds - max(0.0, left)) / 60), max(1, int(seconds / 60)))
        for worker, _ in workers:
            worker.drain()
        await asyncio.wait(lives)
    for _, client in workers:
        await client.close()
    return playing


def _worker(name: str, store: TimedStore, urls: list[str], settings: RolloutSection) -> tuple[RolloutWorker, EnvClient]:
    client = EnvClient(urls, timeout_s=CALL_S)
    return simulated_worker(name, store, client, settings, latency_s=LATENCY_S, games=True), client
