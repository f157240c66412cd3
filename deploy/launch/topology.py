"""Brings up what every run needs, in order, and takes it down in reverse: Redis, Ray, environment servers, weights.

One topology: a laptop and a cluster differ in what is started here and what is only connected to.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.launch.processes import Actor, EnvServer, LearnerGang, free_port
from deploy.launch.ray_cluster import ray_cluster
from services.config.secrets import env_token, redis_url
from services.config.tree import Config
from services.controller.supervise import Supervisor
from services.errors import UserError
from services.store.redis_server import private_redis
from services.store.store import Store
from services.telemetry.tracing import tracing


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """What runs, and how to reach it."""

    config: Config
    run: str
    """Key prefix in Redis: the run's name, plus a nonce for one-off runs such as evaluations."""
    folder: Path
    store: Store
    store_url: str
    env_urls: tuple[str, ...]
    weights: Any
    weights_name: str
    supervisor: Supervisor
    env_token: str | None = None
    """What the environment servers ask for."""

    def rollout_worker(self, index: int, model: Path) -> Actor:
        """A member that holds one vLLM engine."""
        from rollout.actor import RolloutActor

        rollout = self.config.rollout
        return Actor(
            f"rollout worker {index}", "rollout", f"rollout-{index}",
            lambda: RolloutActor.options(num_cpus=rollout.cpus, num_gpus=rollout.gpus).remote(
                config_json=self.config.model_dump_json(), run=self.run, worker=f"rollout-{index}",
                store_url=self.store_url, env_urls=list(self.env_urls),
                env_token=self.env_token, model_path=str(model.absolute()),
                weights_actor_name=self.weights_name, folder=str(self.folder.absolute())),
        )

    def learner(self, model: Path) -> LearnerGang:
        """The learner's ranks as one member."""
        from learner.actor import LearnerActor

        learner = self.config.learner
        return LearnerGang(
            "learner", learner.ranks,
            lambda rank: LearnerActor.options(num_cpus=learner.cpus, num_gpus=learner.gpus).remote(
                config_json=self.config.model_dump_json(), run=self.run, rank=rank, world=learner.ranks,
                store_url=self.store_url, model_path=str(model.absolute()),
                weights_actor_name=self.weights_name),
        )


@contextmanager
def topology(config: Config, *, run: str, folder: Path, config_file: Path, note: Any) -> Iterator[Topology]:
    """Everything but rollout workers and the learner. Stops what it started, on any exit."""
    # Actors have working folders of their own, above all in a submitted job.
    config = config.model_copy(update={"runs_dir": config.runs_dir.absolute()})
    with ExitStack() as stack:
        stack.enter_context(tracing(config.metrics.traces, process="controller", run=run))
        note("starting Redis" if config.redis.url is None else "connecting to Redis")
        url = redis_url(config.redis) or stack.enter_context(private_redis(folder / "redis"))
        store = Store(url, run, settings=config.redis)
        store.check()
        note("starting Ray")
        namespace = f"gagpo-{uuid.uuid4().hex[:12]}"
        stack.enter_context(ray_cluster(config, namespace))
        _refuse_private_parts_on_many_nodes(config)
        supervisor = Supervisor(note, config.supervision, beats=store.beats)
        stack.callback(supervisor.stop)
        # Servers of the run's own get a token that nobody else has: other users of this machine reach them too.
        token = env_token(config.env) if config.env.urls else secrets.token_urlsafe(32)
        urls = config.env.urls or tuple(_start_servers(config, folder, config_file, supervisor, token))
        supervisor.wait("environment")
        weights, name = _weights_actor(namespace)
        yield Topology(config=config, run=run, folder=folder, store=store, store_url=url, env_urls=urls,
                       env_token=token, weights=weights, weights_name=name, supervisor=supervisor)


def _start_servers(config: Config, folder: Path, config_file: Path, supervisor: Supervisor,
                   token: str | None) -> Iterator[str]:
    for index in range(config.env.servers):
        server = EnvServer(index, free_port(), config_file, folder, token)
        supervisor.add(server)
        yield server.url


def _refuse_private_parts_on_many_nodes(config: Config) -> None:
    """A private Redis or environment server listens on this machine only."""
    import ray

    if sum(1 for node in ray.nodes() if node["Alive"]) == 1:
        return
    missing = [key for key, value in (("redis.url", config.redis.url), ("env.urls", config.env.urls)) if not value]
    if missing:
        raise UserError(f"the Ray cluster has several nodes, and {' and '.join(missing)} would be private to this one",
                        "give addresses that every node reaches")


def _weights_actor(namespace: str) -> tuple[Any, str]:
    from services.weights.actor import WeightsActor

    name = f"weights-{namespace}"
    return WeightsActor.options(name=name, num_cpus=0).remote(), name
