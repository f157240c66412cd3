"""Starts what every run needs, in order, and stops it in reverse: Ray, Redis, environment servers, weights actor.

A laptop and a cluster have the same topology. They differ only in which parts are started and which already run.
"""

from __future__ import annotations

import secrets
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from deploy.launch.planning.gpu_plan import shared_device, with_transfer
from deploy.launch.planning.gpu_pool import pool_of
from deploy.launch.planning.model_memory import check_object_store
from deploy.launch.ray_address import ray_address
from deploy.launch.ray_cluster import ray_cluster
from deploy.members import private_ray
from deploy.members.env_server import EnvServer, PlacedServer, ServerHost
from deploy.members.placement import (
    NODE_SHARE,
    ClusterPlace,
    GpuShare,
    ProcessPlace,
    SharedGpus,
    bundle,
    on_roomiest_node,
    total_nodes,
)
from deploy.members.ray_actor import Actor, LearnerRanks
from deploy.runs.folder import RunFolder
from deploy.runs.wanted import numbers, read_wanted
from envservice.server.capacity import memory_bytes
from rollout.engine.weights_file import weights_file
from services.config.redis import redis_url
from services.config.secrets import env_token
from services.config.tree import Config
from services.controller.supervise import Fleet, Supervisor
from services.outages import retry_server
from services.process.addresses import held_port, is_local, servers_behind
from services.records import Version
from services.store.redis_server import memory_share, private_redis
from services.store.store import Store
from services.telemetry.logs import get_logger

log = get_logger("discovery")
RESOLVE_S = 5.0
"""Seconds between two look-ups of the names of env.urls: the TTL of such names in Kubernetes."""
LEASE_S = 60.0
"""Time to live of the learner's lease while a folder is published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The parts of a run and their addresses."""

    config: Config
    run: str
    """Key prefix in Redis: the run's name. One-off runs such as evaluations add a nonce."""
    folder: Path
    store: Store
    store_url: str
    given_urls: Callable[[], tuple[str, ...]]
    """Returns the servers that env.urls name now; none if the run starts its own."""
    weights: Any
    weights_name: str
    supervisor: Supervisor
    address: str = "127.0.0.1"
    """The address by which the nodes of the cluster reach this machine; loopback with a private Ray."""
    env_token: str | None = None
    """The bearer token of the environment servers."""
    shared_gpus: SharedGpus | None = None
    """The GPUs that rollout workers share with the learner's ranks."""
    servers: Fleet[EnvServer] | Fleet[PlacedServer] | None = None
    """The run's own environment servers; None if it uses servers that already run."""

    def urls(self) -> tuple[str, ...]:
        """Returns the URLs of the present environment servers."""
        if self.servers is None:
            return self.given_urls()
        servers: Sequence[EnvServer | PlacedServer] = self.servers.members
        return tuple(one.url for one in servers if one.url and self.supervisor.was_ready(one))

    def rollout_worker(self, index: int, model: Path) -> Actor:
        """Returns a rollout worker as a member. It holds one vLLM engine."""
        from rollout.actor import RolloutActor

        rollout = self.config.rollout
        asked = bundle(cpus=rollout.cpus, gpus=rollout.reserved_gpus, nodes=self.config.placement.rollout)
        return Actor(
            f"rollout worker {index}", "rollout", f"rollout-{index}",
            lambda options: RolloutActor.options(**options).remote(
                config_json=self.config.model_dump_json(), run=self.run, worker=f"rollout-{index}",
                store_url=self.store_url, env_urls=list(self.urls()), shared_gpu=index,
                env_token=self.env_token, model_path=str(model.absolute()),
                weights_actor_name=self.weights_name, folder=str(self.folder.absolute())),
            self._place(index, asked),
        )

    def _place(self, index: int, asked: dict[str, float]) -> ProcessPlace:
        """Returns the place of a worker: on the GPU of the learner rank with its number, if they share GPUs."""
        if self.shared_gpus is None or index >= len(self.shared_gpus.asked):
            return ClusterPlace([asked])
        return GpuShare(self.shared_gpus, [asked], first=index)

    def learner(self, model: Path) -> LearnerRanks:
        """Returns the learner as one member with all its ranks."""
        from learner.actor import LearnerActor

        learner, shared = self.config.learner, shared_device(self.config, pool_of(self.config))
        return LearnerRanks(
            learner.ranks,
            lambda rank, world, options: LearnerActor.options(**options).remote(
                config_json=self.config.model_dump_json(), run=self.run, rank=rank, world=world,
                store_url=self.store_url, model_path=str(model.absolute()),
                weights_actor_name=self.weights_name, shared=shared),
            bundle(cpus=learner.cpus, gpus=learner.gpus, nodes=self.config.placement.learner),
            fewest=learner.fewest_ranks, shared_gpus=self.shared_gpus)


@contextmanager
def topology(config: Config, *, run: str, folder: Path, note: Any) -> Iterator[Topology]:
    """Starts everything except rollout workers and the learner. On any exit, stops what it has started.

    `folder`: the run's folder, with its config.yaml.
    """
    # Actors may have other working folders than this process, above all in a submitted job.
    config = with_transfer(_with_absolute_paths(config), pool_of(config))
    with ExitStack() as stack:
        note("starting Ray" if ray_address(config) is None else "connecting to Ray")
        namespace = f"gagpo-{uuid.uuid4().hex[:12]}"
        address = stack.enter_context(ray_cluster(config, namespace, note))
        note("starting Redis" if config.redis.url is None else "connecting to Redis")
        url = redis_url(config.redis) or stack.enter_context(private_redis(
            folder / "redis", None if is_local(address) else address, memory=memory_share(memory_bytes())))
        store = Store.of_run(config, url, run)
        # It has answered before, in the preflight.
        retry_server(store.connection.check, config.redis.outage_seconds, note)
        supervisor = Supervisor(note, config.supervision, beats=store.state.beats, ground=private_ray.check,
                                milestone=lambda: (store.counts(), store.state.evaluated()))
        stack.callback(supervisor.stop)
        # The run's own servers get a secret token, because other users of this machine can reach them too.
        token = env_token(config.env) if config.env.urls else secrets.token_urlsafe(32)
        servers = None if config.env.urls else _servers(config, folder, supervisor, token=token, address=address)
        if servers is not None:
            servers.want(numbers(config, read_wanted(RunFolder(folder))).env)
            supervisor.wait("environment")
        given = stack.enter_context(Discovery(config.env.urls))
        weights, name = _weights_actor(config, namespace)
        yield Topology(config=config, run=run, folder=folder, store=store, store_url=url, given_urls=given.urls,
                       address=address, env_token=token, weights=weights, weights_name=name, supervisor=supervisor,
                       shared_gpus=_shared_gpus(config), servers=servers)


def _with_absolute_paths(config: Config) -> Config:
    """Returns the config with absolute paths to the folders that actors read."""
    teacher = config.learner.distill.teacher
    return config.with_keys({"runs_dir": config.runs_dir.absolute(),
                             "learner.distill.teacher": None if teacher is None else teacher.absolute()})


def _shared_gpus(config: Config) -> SharedGpus | None:
    """Returns the GPUs of a config whose workers and ranks share them."""
    if not config.shares_gpus:
        return None
    rollout, learner, nodes = config.rollout, config.learner, config.placement
    marks = bundle(nodes=nodes.rollout) | bundle(nodes=nodes.learner)
    return SharedGpus(bundle(cpus=rollout.cpus + learner.cpus) | marks, learner.ranks)


def _servers(config: Config, folder: Path, supervisor: Supervisor, *, token: str | None,
             address: str) -> Fleet[EnvServer] | Fleet[PlacedServer]:
    """Returns the run's own environment servers: child processes with a private Ray, else actors of the cluster."""
    config_file = RunFolder(folder).config_file
    if is_local(address):
        port = cache(lambda _: held_port())  # a server with the same number takes the same port again
        return Fleet(supervisor, lambda index: EnvServer(index, port(index), config_file, folder, token))
    import ray

    actor: Any = ray.remote(max_restarts=0)(ServerHost)
    return Fleet(supervisor, lambda index: PlacedServer(
        index,
        lambda options: actor.options(**options).remote(
            index, str(config_file.absolute()), str(folder.absolute()), token, config.supervision.start_seconds),
        ClusterPlace([bundle(cpus=config.env.cpus, nodes=config.placement.environment)])))


def _weights_actor(config: Config, namespace: str) -> tuple[Any, str]:
    from services.weights.actor import WeightsActor

    name, nodes = f"weights-{namespace}", config.placement.weights
    check_object_store(config, [node.get("object_store_memory", 0.0) for node in total_nodes()
                                if nodes is None or nodes in node])
    # Ray puts an actor without resources on any node, also on a head with little memory.
    options = {"resources": {nodes: NODE_SHARE}} if nodes else on_roomiest_node()
    return WeightsActor.options(name=name, num_cpus=0, **options).remote(), name


def publish_folder(parts: Topology, model: Path, *, holder: str, step: int = 0) -> Version:
    """Loads `model`, makes it the current version under a new incarnation, and returns that version.

    `step`: the learner step of the model. Takes the learner's lease for that time, with the learner's holder name: so a
    dead learner's lease does not block it, and a living learner can no longer publish. Raises RayLost if the private
    Ray dies. The weights go through a file: Ray kills a process that hands over a large object while its raylet dies.
    """
    from services.weights.pack import pack_folder

    packed = pack_folder(model, parts.config.model.dtype)
    lease = parts.store.leases.acquire("learner", f"{holder}-learner", ttl_s=LEASE_S)
    try:
        version = Version(incarnation=parts.store.state.incarnation(lease), step=step, digest=packed.digest)
        place = None if ray_address(parts.config) is None else parts.folder  # the actor may be on another node
        with weights_file(packed.manifest, packed.buffer, packed.digest, folder=place) as file:
            private_ray.ask(lambda: parts.weights.publish_file.remote(version, packed.manifest, str(file)),
                            parts.config.learner.collective_s, f"publishing {version.short} (learner.collective_s)")
        parts.store.state.publish_version(lease, version, str(model))
    finally:
        parts.store.leases.release(lease)
    return version


class Discovery:
    """Keeps the list of the environment servers that env.urls name up to date during its block. `urls` never waits.

    Each address of a name counts as one server, so servers behind a headless Service of Kubernetes, or behind the name
    of a scaled service of compose, may come and go. A name that does not resolve keeps the addresses that it had.
    """

    def __init__(self, urls: Sequence[str], *, resolve: Callable[[str], Sequence[str]] = servers_behind,
                 every_s: float = RESOLVE_S) -> None:
        self._resolve, self._every_s = resolve, every_s
        self._servers: dict[str, tuple[str, ...]] = {url: (url,) for url in urls}
        self._lost: set[str] = set()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="discovery", daemon=True)

    def __enter__(self) -> Discovery:
        self.look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()

    def urls(self) -> tuple[str, ...]:
        """Returns the present servers, each once."""
        return tuple(dict.fromkeys(one for servers in self._servers.values() for one in servers))

    def look(self) -> None:
        """Resolves every name once."""
        for url, before in self._servers.items():
            try:
                servers = tuple(self._resolve(url))
            except OSError as error:
                if url not in self._lost:  # once in each outage
                    log.warning("the name of an environment server does not resolve", url=url, reason=str(error))
                self._lost.add(url)
                continue
            self._lost.discard(url)
            if servers != before:
                log.info("environment servers", url=url, servers=servers)
            self._servers = {**self._servers, url: servers}

    def _run(self) -> None:
        while not self._done.wait(self._every_s):
            self.look()
