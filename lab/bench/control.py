"""The control plane alone: tickets through the real store, controller, collector and rollout workers, without games.

    workers   N simulated workers whose episodes take no time: tickets a second, commit latency, CPU of each part
    growth    100 to 100,000 groups through the store, one after the other: CPU, commands and traffic of Redis per group
              near each of these numbers, and after the last of them in multiples of a new run's, in turns, so that
              other load changes both. Other load never changes the number of commands

Workers, controller and learner are threads of one process here, so tickets a second are a floor for a cluster. CPU per
group does not depend on that: each part's is counted by its own thread, and Redis reports its own.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from envservice.client.client import EnvClient
from lab.bench.figures import Figure, Report, silent
from lab.bench.simulated import (
    ROOM,
    InThread,
    SimulatedRun,
    TimedStore,
    a_step,
    an_episode,
    redis_cpu,
    simulated_worker,
    unaccounted,
)
from services.config.sections import RolloutSection
from services.config.tree import Config
from services.controller.controller import Controller
from services.store.redis_server import private_redis
from services.store.store import Store

WORKERS = (1, 16, 64, 256)
LOOK_S = 0.1
"""Between two looks at the number of tickets played."""
TICKETS = 10_000
"""Tickets that each number of workers plays."""
MILESTONES = (100, 1_000, 10_000, 100_000)
PAIRS, WARM_STEPS, BLOCK_STEPS = 15, 5, 10
"""Blocks of learner steps of the old run and of a new one, in turns, and the steps before a new run's block."""
SLOTS = 32
GROUP_SIZE = 8
TASKS = [f"bench/{index:04d}" for index in range(1000)]
NOWHERE = "http://127.0.0.1:9"


def run(report: Report = silent) -> list[Figure]:
    """Runs the bench in about ten minutes."""
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="gagpo-bench-") as folder, private_redis(Path(folder)) as url:
        for index, workers in enumerate(WORKERS):
            report(f"{workers} workers", index, len(WORKERS) + 1)
            figures += asyncio.run(_workers(url, workers, Path(folder) / f"{workers}"))
    with tempfile.TemporaryDirectory(prefix="gagpo-bench-") as folder, private_redis(Path(folder)) as url:
        report("growth", len(WORKERS), len(WORKERS) + 1)
        return figures + _growth(url, Path(folder) / "growth")


def _config(name: str, *, groups: int, staleness: int) -> Config:
    return Config.model_validate({
        "name": name, "steps": 1_000_000, "eval": {"every": 0},
        "learner": {"groups_per_step": groups, "group_size": GROUP_SIZE, "staleness": staleness}})


async def _workers(url: str, number: int, folder: Path) -> list[Figure]:
    """Returns the figures of `number` workers that play TICKETS tickets."""
    # Enough tickets that no worker waits for the controller, which issues five times a second.
    made = SimulatedRun(url, _config(f"workers-{number}", groups=64, staleness=3), TASKS, folder)
    threads = [InThread("controller", made.controller().tick), InThread("learner", made.learn, pause_s=0)]
    stores = [TimedStore(url, made.config.name) for _ in range(number)]
    before, began, own = redis_cpu(made.store), time.monotonic(), time.process_time()
    for thread in threads:
        thread.start()
    async with EnvClient([NOWHERE]) as env:
        settings = RolloutSection(slots=SLOTS)
        workers = [simulated_worker(f"rollout-{index}", store, env, settings, latency_s=0, games=False)
                   for index, store in enumerate(stores)]
        async with asyncio.TaskGroup() as group:
            for worker in workers:
                group.create_task(worker.run())
            while sum(len(store.commits) for store in stores) < TICKETS:  # noqa: ASYNC110 - it looks seldom
                await asyncio.sleep(LOOK_S)
            for worker in workers:
                worker.drain()
    seconds, redis, process = time.monotonic() - began, redis_cpu(made.store) - before, time.process_time() - own
    made.end()
    for thread in threads:
        thread.stop()
    took = [took for store in stores for took, _ in store.commits]
    groups = len(took) / GROUP_SIZE
    name = f"{number} workers" if number > 1 else "1 worker"
    rest = process - sum(thread.cpu_s for thread in threads)
    wrong = sum(unaccounted(made.store, len(took), GROUP_SIZE).values())
    return [
        Figure(name=f"{name}: tickets", value=len(took) / seconds, unit="tickets/s"),
        Figure(name=f"{name}: commit, median", value=1000 * statistics.median(took), unit="ms"),
        Figure(name=f"{name}: commit, 99th percentile", value=1000 * statistics.quantiles(took, n=100)[98], unit="ms"),
        *(Figure(name=f"{name}: CPU per group, {part}", value=1000 * spent / groups, unit="ms") for part, spent in (
            ("Redis", redis), ("controller", threads[0].cpu_s), ("learner's side", threads[1].cpu_s),
            ("workers", rest))),
        Figure(name=f"{name}: groups or episodes lost or doubled", value=wrong, unit=""),
    ]


class Costs(NamedTuple):
    """Costs so far: of Redis, and of this thread."""

    redis: float
    """CPU seconds of Redis."""
    ours: float
    """CPU seconds of this thread."""
    commands: float
    """Commands that Redis has executed, those inside scripts included."""
    kilobytes: float
    """Traffic of Redis in both directions."""

    @classmethod
    def now(cls, store: Store) -> Costs:
        """Reads all of them."""
        counts, traffic = store.connection.redis.info("commandstats"), store.connection.redis.info("stats")
        return cls(redis_cpu(store), time.thread_time(), sum(one["calls"] for one in counts.values()),
                   (traffic["total_net_input_bytes"] + traffic["total_net_output_bytes"]) / 1000)

    def since(self, before: Costs, per: float = 1.0) -> Costs:
        """Returns what was spent since then, divided by `per`."""
        return Costs(*((now - then) / per for now, then in zip(self, before, strict=True)))


NAMES = {"redis": ("CPU per group, Redis", 1000.0, "ms"), "ours": ("CPU per group, ours", 1000.0, "ms"),
         "commands": ("commands of Redis per group", 1.0, ""), "kilobytes": ("traffic of Redis per group", 1.0, "kB")}
"""Field of Costs -> name of its figure, factor, unit."""


def _growth(url: str, folder: Path) -> list[Figure]:
    """Returns the cost of a group at each milestone, over the tenth of the groups before it."""
    made = SimulatedRun(url, _config("growth", groups=20, staleness=0), TASKS, folder)
    controller, store, figures, done = made.controller(), Store(url, "growth"), list[Figure](), 0
    per_step = made.config.learner.groups_per_step
    for milestone in MILESTONES:
        while done < milestone - max(milestone // 10, per_step):
            done += _step(made, controller, store)
        before, first = Costs.now(store), done
        while done < milestone:
            done += _step(made, controller, store)
        spent, held = Costs.now(store).since(before, done - first), store.connection.redis.info("memory")["used_memory"]
        figures += [Figure(name=f"{milestone:,} groups: {name}", value=factor * getattr(spent, key), unit=unit)
                    for key, (name, factor, unit) in NAMES.items()]
        figures.append(Figure(name=f"{milestone:,} groups: memory of Redis", value=held / 1e6, unit="MB"))
    ratios = [_against_new(made, controller, store, url, folder / f"{pair}", last=bool(pair % 2))
              for pair in range(PAIRS)]
    figures += [Figure(name=f"{done:,} groups against a new run: {name}, median of {PAIRS}",
                       value=statistics.median(getattr(ratio, key) for ratio in ratios), unit="")
                for key, (name, _, _) in NAMES.items()]
    done += PAIRS * BLOCK_STEPS * per_step
    wrong = sum(unaccounted(store, done * GROUP_SIZE, GROUP_SIZE).values())
    return [*figures, Figure(name="growth: groups or episodes lost or doubled", value=wrong, unit="")]


def _against_new(made: SimulatedRun, controller: Controller, store: Store, url: str, folder: Path, *,
                 last: bool) -> Costs:
    """Returns what BLOCK_STEPS cost in this run, in multiples of what they cost in a new one.

    `last`: whether this run's block comes after the new run's.
    """
    new = SimulatedRun(url, _config(f"new-{folder.name}", groups=20, staleness=0), TASKS, folder)
    theirs = new.controller(), Store(url, new.config.name)
    for _ in range(WARM_STEPS):
        _step(new, *theirs)
    both, costs = [(made, controller, store), (new, *theirs)], list[Costs]()
    for parts in reversed(both) if last else both:
        before = Costs.now(store)
        for _ in range(BLOCK_STEPS):
            _step(*parts)
        costs.append(Costs.now(store).since(before))
    old, young = reversed(costs) if last else costs
    return Costs(*(one / other for one, other in zip(old, young, strict=True)))


def _step(made: SimulatedRun, controller: Controller, store: Store) -> int:
    """Issues, plays and trains the groups of one learner step. Returns their number."""
    controller.tick()
    for claim in store.claim("bench", made.config.learner.groups_per_step * GROUP_SIZE):
        store.commit_episode(claim, an_episode(claim.ticket, [a_step(ROOM, "look", made.version)], ROOM))
    return made.learn()
