"""A controller over a real Redis, with a worker and a learner that act when a test tells them to."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import msgspec
import numpy as np
import pytest

from services.config.env import EnvSection
from services.config.tree import Config
from services.controller.controller import Controller, Hooks
from services.controller.supervise import Supervisor
from services.controller.task_streams import TaskStream
from services.controller.tickets import EvalRequest, TrainTickets
from services.errors import EnvFault
from services.records import Drop, Episode, Manifest, Step, Version, VersionSpan
from services.store.redis_server import private_redis
from services.store.store import Store

TASKS = [f"toy/train/{letter}" for letter in "abcdef"]
PANEL = ("toy/valid/x", "toy/valid/y")


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory):
    with private_redis(tmp_path_factory.mktemp("redis")) as url:
        yield url


def toy_config(*, staleness=0, eval_every=2, steps=4, judge=None, dynamic_sampling=0) -> Config:
    return Config.model_validate({
        "name": "toy", "steps": steps, "eval": {"every": eval_every},
        "learner": {"groups_per_step": 2, "group_size": 2, "staleness": staleness,
                    "dynamic_sampling": dynamic_sampling, "judge": judge or {}}})


@dataclass
class World:
    """One run. `played` and `trained` record the work of its worker and its learner, in order."""

    connect: Callable[[], Store]
    """The store as another process connects to it."""
    config: Config
    now: float = 0.0
    notes: list[str] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)
    """The conditions for which the run waited, as the controller reported them to the view."""
    results: list[tuple[dict, list[Episode]]] = field(default_factory=list)
    done_when_told: list[int] = field(default_factory=list)
    """Value of store.state.evaluated() at the time of each result."""
    dropped: list[tuple[Drop, list[Episode]]] = field(default_factory=list)
    played: list = field(default_factory=list)
    trained: list[list[str]] = field(default_factory=list)
    incarnation: int = 1

    def __post_init__(self) -> None:
        self.store = self.connect()

    def controller(self, *, ttl_s=30.0) -> Controller:
        """Returns a new controller with the same holder name."""
        def evaluated(summary, episodes):
            self.results.append((summary, episodes))
            self.done_when_told.append(self.store.state.evaluated())

        def dropped(drops):
            held = {*self.store.outstanding_groups(), *self.store.ready("train")}
            assert {drop.group for drop in drops} <= held, "told too late to keep any"
            self.dropped += drops.items()

        return Controller(
            config=self.config, store=self.store, lease=self.store.leases.acquire("controller", "toy", ttl_s=ttl_s),
            supervisor=Supervisor(self.notes.append, self.config.supervision, beats=self.store.state.beats,
                                  clock=lambda: self.now),
            request=self.request, clock=lambda: self.now,
            tickets=TrainTickets(config=self.config, tasks=TaskStream(TASKS, seed=0)),
            hooks=Hooks(note=self.notes.append, evaluated=evaluated, task_type=lambda task: task[-1],
                        tick=lambda: None, dropped=dropped, waits=self.waits.append))

    def request(self, version: Version) -> EvalRequest | None:
        if not self.config.evaluates(version.step):
            return None
        return EvalRequest(label=f"step-{version.step}", version=version, split="valid", tasks=PANEL,
                           temperature=0.5, samples=2, seed=1, env=EnvSection(max_steps=3))

    def play(self, count=100, *, broken=lambda ticket: False) -> list:
        """Plays up to `count` tickets as the worker, and fails the `broken` ones. Returns the finished tickets."""
        finished = []
        for claim in self.store.claim("worker", count):
            if broken(claim.ticket):
                self.store.fail(claim, "env: the game is broken")
                continue
            assert self.commit(claim) == "accepted"
            finished.append(claim.ticket)
        self.played += finished
        return finished

    def commit(self, claim, **changes) -> str:
        """Commits an episode with these changes as the worker, or fails. Returns what the store says."""
        pointer = self.store.state.version()
        version = claim.ticket.exact_version or (pointer[0] if pointer else Version(incarnation=1, step=0))
        try:
            return self.store.commit_episode(claim, msgspec.structs.replace(an_episode(claim, version), **changes))
        except EnvFault as fault:
            return self.store.fail(claim, f"{fault.boundary}: {fault}")

    def publish(self, step: int) -> Version:
        """Makes a version current, as the learner."""
        version = Version(incarnation=self.incarnation, step=step, digest=f"weights-{step}")
        self.store.state.publish_version(self.store.leases.acquire("learner", "toy-learner"), version, "")
        return version

    def take(self, controller: Controller, steps: int) -> None:
        """Publishes version 0 and lets all take so many learner steps; evaluations that are due are played on the way.
        """
        self.publish(0)
        for _ in range(steps):
            controller.tick()
            self.play()
            controller.tick()
            self.train()

    def train(self) -> bool:
        """Takes one learner step on the oldest ready groups and publishes. Returns False if there are too few
        groups."""
        groups = self.store.ready("train")[:self.config.learner.groups_per_step]
        if len(groups) < self.config.learner.groups_per_step:
            return False
        step = self.store.counts().last_step + 1
        lease = self.store.leases.acquire("learner", "toy-learner")
        self.store.steps.begin(lease, Manifest(step=step, incarnation=self.incarnation, groups=groups, drops=[]))
        self.trained.append(groups)
        self.publish(step)
        return True


def an_episode(claim, version: Version) -> Episode:
    """Returns an episode of one step, won if the member's number is even."""
    step = Step(
        observation="", prompt_ids=np.arange(2, dtype=np.int32), response_ids=np.arange(3, dtype=np.int32),
        logprobs=np.zeros(3, np.float32), spans=[VersionSpan(version=version, start=0, end=3)], action="look",
        valid=True, admissible=True, reward=0.0)
    won = claim.ticket.k % 2 == 0
    return Episode(ticket=claim.ticket, steps=[step], won=won, end="won" if won else "turns", worker=claim.worker,
                   attempt=claim.attempt, seconds=0.1, engine="toy 1")


@pytest.fixture
def world(redis_url):
    """Provides `world(staleness=0, eval_every=2, steps=4)`, a run with its own keys."""
    return lambda **sizes: World(partial(Store, redis_url, uuid.uuid4().hex[:8]), toy_config(**sizes))
