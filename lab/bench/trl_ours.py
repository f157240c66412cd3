"""Our side of `lab.bench trl`: Redis, an environment server, vLLM, a rollout worker and the learner, step by step.

They are the parts that `gagpo train` starts as processes. Here worker and learner are threads of one process, and the
bench decides when a step begins.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from deploy.members.env_server import EnvServer
from envservice.registry import open_environment
from lab.bench.trl import STEP_S, Taken
from services.config.file import dump_config
from services.config.tree import Config
from services.process.addresses import held_port
from services.process.env_variables import limit_openmp_spin
from services.records import Episode, Ticket, Version
from services.seeds import seed_for
from services.store.lease import Lease
from services.store.redis_server import private_redis
from services.store.store import Store
from services.weights.pack import Packed

POLL_S = 0.05


def take_steps(config: Config, model: Path, end: Connection) -> None:
    """Starts everything, and takes a step for each word from `end`, whose answer is Taken."""
    limit_openmp_spin()
    with tempfile.TemporaryDirectory(prefix="gagpo-bench-") as folder:
        path = Path(folder)
        dump_config(config, path / "config.yaml")
        server = EnvServer(0, held_port(), path / "config.yaml", path)
        with private_redis(path / "redis") as url:
            server.start()
            server.wait()
            try:
                _take_steps(Loop(config, url, model), server.url, end)
            finally:
                server.stop()


def _take_steps(loop: Loop, env_url: str, end: Connection) -> None:
    with closing(loop), _worker(loop, env_url):
        end.send("ready")
        with suppress(EOFError):  # the bench has ended
            while True:
                end.recv()
                end.send(loop.step())


class Loop:
    """Controller and learner of a run: issues the tickets of a step, trains on its episodes and publishes."""

    def __init__(self, config: Config, url: str, model: Path) -> None:
        from learner.rank_group import RankGroup
        from learner.trainer import Learner

        self.config, self.model = config, model
        self.store = Store(url, config.name)
        self._ranks = RankGroup(0, 1)
        self._learner = Learner(config, model, self._ranks)
        environment = open_environment(config.env)
        self._tasks = environment.tasks(environment.training_splits()[0])
        self._lease: Lease = self.store.leases.acquire("learner", "bench", ttl_s=STEP_S)
        self._issuer: Lease = self.store.leases.acquire("controller", "bench", ttl_s=STEP_S)
        self._incarnation = self.store.state.incarnation(self._lease)
        self.packed: Packed = self._learner.pack()
        self._publish()

    def close(self) -> None:
        """Ends the process group."""
        self._ranks.leave()

    def step(self) -> Taken:
        """Plays the episodes of a step, trains on them and publishes the new weights."""
        start = time.perf_counter()
        groups = self._play()
        sampled = time.perf_counter()
        self._learner.train(groups, incarnation=self._incarnation)
        self.packed = self._learner.pack()
        self._publish()
        now, episodes = time.perf_counter(), [episode for group in groups for episode in group]
        return Taken(
            seconds={"step": now - start, "sampling": sampled - start, "training": now - sampled},
            sampled=sum(len(turn.response_ids) for episode in episodes for turn in episode.steps),
            success=sum(episode.won for episode in episodes) / len(episodes))

    def _publish(self) -> None:
        version = Version(incarnation=self._incarnation, step=self._learner.step, digest=self.packed.digest)
        self.store.state.publish_version(self._lease, version, "")

    def _play(self) -> list[list[Episode]]:
        learner, first = self.config.learner, self._learner.step * self.config.learner.groups_per_step
        groups = [f"train/{first + index:08d}" for index in range(learner.groups_per_step)]
        for index, group in enumerate(groups):
            tickets = [Ticket(group=group, k=k, size=learner.group_size, task=self._tasks[first + index],
                              seed=seed_for(0, group, k), kind="train", temperature=1.0,
                              max_steps=self.config.env.max_steps) for k in range(learner.group_size)]
            self.store.issue(self._issuer, tickets, capacity=first + len(groups))
        while not set(groups) <= set(self.store.ready("train")):
            time.sleep(POLL_S)
        return [self.store.episodes(group) for group in groups]


@contextmanager
def _worker(loop: Loop, env_url: str) -> Iterator[None]:
    """Runs a rollout worker in a thread, from when its engine is ready. Raises what ended its start."""
    ready, over = threading.Event(), asyncio.Event()
    errors: list[BaseException] = []
    events = asyncio.new_event_loop()

    def run() -> None:
        try:
            events.run_until_complete(_work(loop, env_url, ready, over))
        except BaseException as error:  # the other thread raises it
            errors.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait()
    if errors:
        raise errors[0]
    try:
        yield
    finally:
        events.call_soon_threadsafe(over.set)
        thread.join()


async def _work(loop: Loop, env_url: str, ready: threading.Event, over: asyncio.Event) -> None:
    from envservice.client.client import EnvClient
    from rollout.actor import UNPUBLISHED
    from rollout.engine.engine import Engine
    from rollout.episode import EpisodeRunner, Limits
    from rollout.prompt_renderer import load_text
    from rollout.weights.receiver import HostReceiver
    from rollout.worker import RolloutWorker

    config, rollout = loop.config, loop.config.rollout
    engine = Engine(loop.model, UNPUBLISHED, config=rollout, dtype=config.model.dtype)

    async def fetch(_version: Version, _folder: str) -> Packed:
        return loop.packed

    async with AsyncExitStack() as stack:
        stack.push_async_callback(engine.close)
        await engine.start()
        client: Any = await stack.enter_async_context(EnvClient([env_url]))
        text = load_text(str(loop.model), config.env, config.model)
        limits = Limits(prompt_tokens=rollout.max_prompt_tokens, response_tokens=rollout.max_response_tokens,
                        reward_scale=config.env.reward_scale)
        runner = EpisodeRunner(worker="bench", engine=engine, env=client, env_engine="own", text=text, limits=limits)
        worker = RolloutWorker("bench", store=loop.store, engine=engine, runner=runner, settings=rollout,
                               weights=HostReceiver(engine, fetch, seconds=rollout.update_seconds))
        working = asyncio.create_task(worker.run())
        ready.set()
        ending = asyncio.create_task(over.wait())
        await asyncio.wait([working, ending], return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        working.cancel()
