"""A run without models: the real store, controller, group collector and rollout worker, around samplers that only wait.

An answer of a simulated sampler takes a time drawn from a log-normal distribution and carries tokens that nobody
computed. Its learner takes the groups of a step, checks them, and publishes the next version at once.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from envservice.base import Outcome
from envservice.client.client import EnvClient
from learner.collect import GroupCollector
from rollout.engine.engine import Engine
from rollout.episode import Keep
from rollout.weights.receiver import HostReceiver
from rollout.worker import RolloutWorker
from services.config.sections import RolloutSection
from services.config.tree import Config
from services.controller.controller import TICK_S, Controller, Hooks
from services.controller.supervise import Supervisor
from services.controller.task_streams import TaskStream
from services.controller.tickets import TrainTickets
from services.records import Episode, Manifest, PlayedTurn, Step, Ticket, Verdict, Version, VersionSpan
from services.store.archive import EpisodeArchive
from services.store.store import Claim, Store
from services.weights.canary import Canary
from services.weights.pack import Manifest as Layout
from services.weights.pack import Packed

PROMPT, RESPONSE = 300, 12
"""Tokens of prompt and response of a turn in the configs that train a small model."""
SPREAD = 0.7
"""Standard deviation of the logarithm of a latency."""
LEASE_S = 600.0
ROOM = Outcome(observation="a room", admissible_actions=["look"])
NO_WEIGHTS = Packed(manifest=[], buffer=np.zeros(1, np.uint8), digest="")


class Ended(Exception):
    """Raised to end the wait for groups that nobody plays any more."""


class TimedStore(Store):
    """A store that records the seconds and the verdict of each commit."""

    def __init__(self, url: str, run: str) -> None:
        super().__init__(url, run)
        self.commits: list[tuple[float, Verdict]] = []

    def commit_episode(self, claim: Claim, episode: Episode) -> Verdict:
        """Commits the episode, and records seconds and verdict."""
        began = time.monotonic()
        verdict = super().commit_episode(claim, episode)
        self.commits.append((time.monotonic() - began, verdict))
        return verdict


class SimulatedEngine(Engine):
    """An engine that holds a version and no weights."""

    def __init__(self, settings: RolloutSection) -> None:
        super().__init__(Path(), Version(incarnation=-1, step=0), config=settings, dtype="float32")

    async def update(self, version: Version, manifest: Layout, buffer: np.ndarray,  # noqa: ARG002
                     canary: Canary | None = None) -> None:  # noqa: ARG002
        """Takes the version at once."""
        self.version = version


class SimulatedRunner:
    """Plays real games with any listed action, or without `games` episodes of one turn that take no time.

    `latency_s` is the median time of an answer.
    """

    def __init__(self, env: EnvClient, engine: Engine, *, latency_s: float, games: bool) -> None:
        self.env = env
        self._engine = engine
        self._latency_s = latency_s
        self._games = games

    async def play(self, ticket: Ticket, attempt: int, *, played: Sequence[PlayedTurn] = (),  # noqa: ARG002
                   keep: Keep = lambda *_: None) -> Episode:
        """Plays one episode from its first turn. Raises EnvFault."""
        began, rng = time.monotonic(), random.Random(ticket.seed)
        now = ROOM
        if not self._games:
            return an_episode(ticket, [a_step(now, "look", self._engine.version)], now, attempt=attempt)
        game = self.env.episode(f"{ticket.id}~{attempt}~{rng.getrandbits(32):x}", ticket.task)
        steps: list[Step] = []
        now = await game.reset()
        while not now.done and len(steps) < ticket.max_steps:
            await asyncio.sleep(rng.lognormvariate(np.log(self._latency_s), SPREAD))
            action = rng.choice(now.admissible_actions or ["look"])
            after = await game.step(action)
            steps.append(a_step(now, action, self._engine.version, reward=after.reward))
            last = steps[-1]
            keep(len(steps) - 1, PlayedTurn(ids=last.response_ids, logprobs=last.logprobs, spans=last.spans,
                                            action=action, digest=after.digest))
            now = after
        await game.close()
        return an_episode(ticket, steps, now, attempt=attempt, seconds=time.monotonic() - began)


def a_step(now: Outcome, action: str, version: Version, *, reward: float = 0.0) -> Step:
    """Returns a turn with a usual number of tokens."""
    return Step(
        observation=now.observation, prompt_ids=np.arange(PROMPT, dtype=np.int32),
        response_ids=np.arange(RESPONSE, dtype=np.int32), logprobs=np.zeros(RESPONSE, np.float32), action=action,
        spans=[VersionSpan(version=version, start=0, end=RESPONSE)], valid=True, admissible=now.admits(action),
        reward=reward)


def an_episode(ticket: Ticket, steps: list[Step], last: Outcome, *, attempt: int = 1, seconds: float = 0.0) -> Episode:
    """Returns a finished episode of these steps."""
    return Episode(ticket=ticket, steps=steps, won=last.won, end="won" if last.won else "turns", worker="simulated",
                   attempt=attempt, seconds=seconds, engine="simulated")


class SimulatedRun:
    """One run on a Redis. `controller()` and `learn()` are the two other parts beside its workers."""

    def __init__(self, url: str, config: Config, tasks: Sequence[str], folder: Path) -> None:
        self.url, self.config = url, config
        self.store = Store(url, config.name)
        self._tasks = tasks
        self._lease = self.store.leases.acquire("learner", "bench", ttl_s=LEASE_S)
        self._incarnation = self.store.state.incarnation(self._lease)
        self._collector = GroupCollector(section=config.learner, store=self.store, lease=self._lease,
                                         archive=EpisodeArchive(folder), check=self._goes_on)
        self._steps = 0
        self._ended = False
        self.store.state.publish_version(self._lease, self.version, "")

    def end(self) -> None:
        """Ends a `learn` that waits, and all later ones."""
        self._ended = True

    def _goes_on(self) -> None:
        if self._ended:
            raise Ended

    def controller(self) -> Controller:
        """Returns a controller with its own store and no members to supervise."""
        store = Store(self.url, self.config.name)
        return Controller(
            config=self.config, store=store, lease=store.leases.acquire("controller", "bench", ttl_s=LEASE_S),
            supervisor=Supervisor(_ignore, self.config.supervision, beats=store.state.beats),
            tickets=TrainTickets(config=self.config, tasks=TaskStream(self._tasks, self.config.seed)),
            request=_ignore, hooks=Hooks(note=_ignore, evaluated=_ignore, task_type=lambda _: "", tick=lambda: None))

    @property
    def version(self) -> Version:
        """Returns the version that was published last."""
        return Version(incarnation=self._incarnation, step=self._steps)

    def learn(self, train: Callable[[int], object] = lambda _: None) -> int:
        """Takes one learner step: waits for its groups, holds each to its size, trains, publishes and retires.

        `train` is called with the number of turns. Returns the number of groups. Raises Ended.
        """
        step = self._steps + 1
        groups = self._collector.collect(step)
        self.store.steps.begin(self._lease, Manifest(step=step, incarnation=self._incarnation, groups=groups, drops=[]))
        turns = 0
        for group in groups:
            episodes = self.store.episodes(group)
            turns += sum(len(episode.steps) for episode in episodes)
            members = [episode.ticket.k for episode in episodes]
            if members != list(range(self.config.learner.group_size)):
                raise AssertionError(f"{group} was trained with the members {members}")
        train(turns)
        self.store.leases.renew(self._lease)
        self._steps = step
        self.store.state.publish_version(self._lease, self.version, "")
        self.store.steps.retire(self._lease, step)
        return len(groups)


class InThread(threading.Thread):
    """Calls `act` until `stop`, with pauses. `cpu_s` is the CPU time that it took, `error` what ended it earlier."""

    def __init__(self, name: str, act: Any, *, pause_s: float = TICK_S) -> None:
        super().__init__(name=name, daemon=True)
        self.cpu_s = 0.0
        self.error: Exception | None = None
        self._act, self._pause_s = act, pause_s
        self._done = threading.Event()

    def run(self) -> None:
        """Calls `act` until `stop`, and ends at the first error."""
        try:
            while not self._done.wait(self._pause_s):
                self._act()
                self.cpu_s = time.thread_time()
        except Ended:
            return
        except Exception as error:
            self.error = error

    def stop(self) -> None:
        """Waits for the end of the last call. Raises what ended the thread."""
        self._done.set()
        self.join()
        if self.error is not None:
            raise self.error


def simulated_worker(name: str, store: Store, env: EnvClient, settings: RolloutSection, *, latency_s: float,
                     games: bool) -> RolloutWorker:
    """Returns a rollout worker with a simulated engine."""
    async def fetch(*_: object) -> Packed:
        return NO_WEIGHTS

    engine = SimulatedEngine(settings)
    runner = SimulatedRunner(env, engine, latency_s=latency_s, games=games)
    weights = HostReceiver(engine, fetch, seconds=settings.update_seconds)
    return RolloutWorker(name, store=store, engine=engine, runner=runner, weights=weights, settings=settings)


def redis_cpu(store: Store) -> float:
    """Returns the CPU seconds that Redis has used."""
    about = store.connection.redis.info("cpu")
    return about["used_cpu_user"] + about["used_cpu_sys"]


def unaccounted(store: Store, accepted: int, size: int) -> dict[str, int]:
    """Counts what is wrong with the books of a run: groups lost, groups counted twice, episodes lost or doubled.

    `accepted`: commits that the store accepted. `size`: members of a group.
    """
    journal = store.steps.journal()
    trained = [group for manifest in journal.manifests.values() for group in manifest.groups]
    gone = [drop.group for manifest in journal.manifests.values() for drop in manifest.drops]
    known = [*trained, *gone, *(drop.group for drop in journal.drops), *journal.in_flight]
    held = sum(len(store.episodes(group)) for group in journal.in_flight)
    rest, dropped = accepted - size * len(trained) - held, len(known) - len(trained) - len(journal.in_flight)
    return {"groups lost": journal.issued - len(set(known)), "groups counted twice": len(known) - len(set(known)),
            "episodes lost or doubled": max(0, -rest, rest - size * dropped)}


def _ignore(*_: object) -> None:
    return None
