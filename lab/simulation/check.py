"""The simulation against the real control plane: store, controller, collector and rollout workers as in a run.

Samplers and learner only wait, for the very times that the simulator is given. So the comparison shows whether its
rules are those of a run, and other work on the machine changes little.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envservice.client.client import EnvClient
from lab.bench.figures import Figure, Report, silent
from lab.bench.simulated import NO_WEIGHTS, ROOM, Ended, InThread, SimulatedEngine, SimulatedRun, a_step, an_episode
from lab.simulation.figures import Figures
from lab.simulation.forecast import WARM, forecast
from rollout.episode import Keep
from rollout.weights.receiver import HostReceiver
from rollout.worker import RolloutWorker
from services.config.sections import RolloutSection
from services.config.tree import Config
from services.records import Episode, PlayedTurn, Ticket
from services.store.redis_server import private_redis
from services.store.store import Store

STEPS = 12
DEADLINE_S = 600.0
TIMES = Figures(turns=(4, 6, 8, 12), turn_alone=0.3, turn_share=0.01, learner_step=1.0, learner_turn=0.01, publish=0.3)
SETUPS: tuple[tuple[int, int, int], ...] = ((2, 16, 0), (2, 16, 1), (2, 32, 0), (3, 8, 1))
"""Rollout workers, their slots, staleness."""
TASKS = [f"bench/{index:04d}" for index in range(100)]
NOWHERE = "http://127.0.0.1:9"


def run(report: Report = silent) -> list[Figure]:
    """Takes about five minutes, of which it waits nearly all."""
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="gagpo-bench-") as folder, private_redis(Path(folder)) as url:
        for index, (workers, slots, staleness) in enumerate(SETUPS):
            name = f"{workers} workers of {slots} slots, staleness {staleness}"
            report(name, index, len(SETUPS))
            config = Config.model_validate({
                "name": f"setup-{index}", "steps": 1000, "eval": {"every": 0}, "checkpoint": {"every": 1000},
                "rollout": {"workers": workers, "slots": slots},
                "learner": {"groups_per_step": 4, "group_size": 8, "staleness": staleness}})
            real = 3600 / asyncio.run(_seconds_per_step(url, config, Path(folder) / config.name))
            predicted = forecast(config, TIMES, steps=100).steps_per_hour
            figures.append(Figure(
                name=name, value=predicted, unit="steps/hour", reference=real, ratio=predicted / real))
    return figures


class WaitingRunner:
    """Plays episodes whose turns take as long as TIMES says for as many as the worker plays now."""

    def __init__(self, env: EnvClient, engine: SimulatedEngine) -> None:
        self.env = env
        self._engine = engine
        self._playing = 0

    async def play(self, ticket: Ticket, attempt: int, *, played: Sequence[PlayedTurn] = (),  # noqa: ARG002
                   keep: Keep = lambda *_: None) -> Episode:  # noqa: ARG002
        """Plays one episode."""
        self._playing += 1
        try:
            turns = random.Random(ticket.seed).choice(TIMES.turns)
            for _ in range(turns):
                await asyncio.sleep(0)  # all episodes that start now count for each other
                await asyncio.sleep(TIMES.turn_alone + self._playing * TIMES.turn_share)
        finally:
            self._playing -= 1
        return an_episode(ticket, [a_step(ROOM, "look", self._engine.version)] * turns, ROOM, attempt=attempt)


async def _seconds_per_step(url: str, config: Config, folder: Path) -> float:
    """Returns the mean time of a learner step after the first WARM ones."""
    made, ends = SimulatedRun(url, config, TASKS, folder), list[float]()

    def learn() -> None:
        if len(ends) == WARM + STEPS:
            raise Ended
        made.learn(train=lambda turns: time.sleep(TIMES.learner_step + turns * TIMES.learner_turn + TIMES.publish))
        ends.append(time.monotonic())

    threads = [InThread("controller", made.controller().tick), InThread("learner", learn, pause_s=0)]
    for thread in threads:
        thread.start()
    async with EnvClient([NOWHERE]) as env, asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
        workers = [_worker(f"rollout-{index}", Store(url, config.name), env, config.rollout)
                   for index in range(config.rollout.workers)]
        for worker in workers:
            group.create_task(worker.run())
        await asyncio.to_thread(threads[1].join)
        for worker in workers:
            worker.drain()
    for thread in threads:
        thread.stop()
    return (ends[WARM + STEPS - 1] - ends[WARM - 1]) / STEPS


def _worker(name: str, store: Store, env: EnvClient, settings: RolloutSection) -> RolloutWorker:
    async def fetch(*_: object) -> Any:
        return NO_WEIGHTS

    engine = SimulatedEngine(settings)
    weights = HostReceiver(engine, fetch, seconds=settings.update_seconds)
    return RolloutWorker(name, store=store, engine=engine, runner=WaitingRunner(env, engine), weights=weights,
                         settings=settings)
