"""Autoscaling between its bounds, with real environment servers and a real store.

Rollout workers are only heartbeats where a test has to choose their load. In a run that shrinks they are real, with
simulated samplers, and so are controller and tickets.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from scripted_member import Scripted

from deploy.launch.scaling import LOOK_S, Scaling
from deploy.launch.topology import Topology
from deploy.members.env_server import EnvServer
from deploy.runs.configs import load_config
from deploy.runs.folder import RunFolder
from deploy.runs.wanted import WantedNumbers, read_wanted
from envservice.client.client import EnvClient, EpisodeHandle
from lab.bench.simulated import InThread, SimulatedRun, TimedStore, simulated_worker, unaccounted
from rollout.worker import RolloutWorker
from services.config.file import dump_config
from services.config.sections import RolloutSection
from services.controller.member import End
from services.controller.supervise import Fleet, Supervisor
from services.process.addresses import held_port
from services.store.lease import Lease
from services.store.redis_server import private_redis
from services.store.store import Store
from services.telemetry.heartbeat import Heartbeat

pytestmark = pytest.mark.timeout(900)
DEADLINE_S = 300.0
SETTINGS = ("env.name=tests.toys.counter:SPEC", "env.max_sessions=8", "rollout.slots=4", "autoscale.pause_seconds=1",
            "autoscale.rollout=[1,3]", "autoscale.env=[1,2]", "autoscale.ticket_wait_seconds=1000",
            "autoscale.request_seconds=1000")  # requests are never that slow: sessions alone decide


class Cluster:
    """The scaling of one run, the sessions that its players hold, and the heartbeats of its workers."""

    def __init__(self, folder: Path, url: str, *settings: str) -> None:
        dump_config(load_config("alfworld-tiny", (*SETTINGS, *settings)), folder / "config.yaml")
        self.config = config = load_config(folder / "config.yaml")
        self.store, self.folder, self.notes = Store(url, folder.name), RunFolder(folder), list[str]()
        self.store_url = url
        self.supervisor = Supervisor(self.notes.append, config.supervision, beats=self.store.state.beats)
        parts = Topology(
            config=config, run=folder.name, folder=folder, store=self.store, store_url=url, given_urls=lambda: (),
            weights=None, weights_name="", supervisor=self.supervisor,
            servers=Fleet(self.supervisor, lambda index: EnvServer(index, held_port(), folder / "config.yaml", folder)))
        self.urls = parts.urls
        self.scaling = Scaling(parts, self._lease(), self._worker, note=self.notes.append)
        self._heartbeats: dict[str, Heartbeat] = {}

    def _lease(self) -> Lease:
        return self.store.leases.acquire("controller", "test", ttl_s=3600)

    def _worker(self, index: int) -> Scripted | Playing:
        self._heartbeats[f"rollout-{index}"] = Heartbeat(f"rollout-{index}", "rollout")
        return Scripted(f"rollout worker {index}", [], beat=f"rollout-{index}")

    def beat(self, wait_s: float, playing: int) -> None:
        """Sends a heartbeat of each worker: one more episode has begun, after its ticket has waited so long."""
        for name, heartbeat in self._heartbeats.items():
            heartbeat.meters("gagpo_rollout_queue_seconds").observe(wait_s)
            heartbeat.meters("gagpo_rollout_tickets", state="playing").set(playing)
            self.store.state.beat(name, heartbeat.beat(), ttl_s=600)

    async def until(self, happened: Callable[[], bool], episodes: list[EpisodeHandle], *, wait_s: float) -> None:
        """Plays the episodes on and on, and beats, until it has happened."""
        deadline = time.monotonic() + DEADLINE_S
        while not happened():
            assert time.monotonic() < deadline, self.notes
            self.beat(wait_s, playing=1)
            self.supervisor.check()
            self.scaling.tick()
            for episode in episodes:
                await episode.reset()
            await asyncio.sleep(0.05)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with private_redis(tmp_path / "redis") as url:
        made = Cluster(tmp_path, url)
        try:
            yield made
        finally:
            made.supervisor.stop()


def test_both_numbers_follow_their_load_up_and_down_within_their_bounds(cluster: Cluster):
    asyncio.run(_play(cluster))


async def _play(cluster: Cluster) -> None:
    cluster.scaling.start()
    cluster.supervisor.wait("environment")
    async with EnvClient(cluster.urls(), outage_s=DEADLINE_S) as client:
        many = [client.episode(f"many-{k}", f"counter/train/{k:08d}") for k in range(7)]  # one server holds 8
        await cluster.until(lambda: read_wanted(cluster.folder) == WantedNumbers(rollout=3, env=2), many, wait_s=2000)
        await cluster.until(lambda: len(cluster.urls()) == 2, many[:1], wait_s=2000)
        for one in many[1:]:
            await one.close()
        await cluster.until(lambda: read_wanted(cluster.folder) == WantedNumbers(rollout=1, env=1), many[:1], wait_s=0)
        await many[0].close()
    changes = [note.removeprefix("autoscale: ") for note in cluster.notes if note.startswith("autoscale: ")]
    assert [change for change in changes if change.startswith("rollout")] == [
        "rollout 1 -> 2", "rollout 2 -> 3", "rollout 3 -> 2", "rollout 2 -> 1"]
    assert [change for change in changes if change.startswith("env")] == ["env 1 -> 2", "env 2 -> 1"]


def test_a_list_of_servers_that_redis_has_lost_is_published_again(tmp_path: Path):
    """A Redis whose machine died comes back without its last second: without the list, or with an older one."""
    with private_redis(tmp_path / "redis") as url:
        config, store, now = load_config("alfworld-tiny", ["rollout.workers=1"]), Store(url, "r"), [0.0]
        parts = Topology(config=config, run="r", folder=tmp_path, store=store, store_url=url,
                         given_urls=lambda: ("http://new:1",), weights=None, weights_name="",
                         supervisor=Supervisor(print, config.supervision))
        lease = store.leases.acquire("controller", "test", ttl_s=3600)
        scaling = Scaling(parts, lease, lambda index: Scripted(f"rollout worker {index}", []), note=print,
                          clock=lambda: now[0])
        scaling.start()
        store.state.publish_servers(lease, ["http://old:1"])
        now[0] += 2 * LOOK_S
        scaling.tick()
        assert store.state.servers() == ("http://new:1",)


class Playing:
    """A real rollout worker with a simulated sampler as a member, in the running event loop."""

    role = "rollout"

    def __init__(self, index: int, store: Store, urls: Callable[[], tuple[str, ...]]) -> None:
        self.name, self.beat = f"rollout worker {index}", f"rollout-{index}"
        self._store, self._urls = store, urls
        self._worker: RolloutWorker | None = None
        self._life: asyncio.Task[None] | None = None

    async def _live(self) -> None:
        async with EnvClient(self._urls(), outage_s=DEADLINE_S) as client:
            self._worker = simulated_worker(self.beat, self._store, client, RolloutSection(slots=4), latency_s=0.01,
                                            games=True)
            await self._worker.run()

    def start(self) -> None:
        self._life = asyncio.get_running_loop().create_task(self._live())

    def ready(self) -> bool:
        return False

    def lacks(self) -> str:
        return ""

    def poll(self) -> End | None:
        assert self._life is not None
        if not self._life.done():
            return None
        return End("" if self._life.exception() is None else repr(self._life.exception()))

    def drain(self) -> None:
        assert self._worker is not None
        self._worker.drain()

    def stop(self) -> None:
        assert self._life is not None
        self._life.cancel()


class ShrinkingRun(Cluster):
    """A run with two real workers and two servers, of which one of each is enough."""

    def __init__(self, folder: Path, url: str) -> None:
        self.stores: list[TimedStore] = []
        super().__init__(folder, url, "rollout.workers=2", "env.servers=2", "env.max_sessions=64", "env.max_steps=3",
                         "steps=1000000", "eval.every=0", "learner.groups_per_step=2", "learner.group_size=2",
                         f"name={folder.name}")

    def _lease(self) -> Lease:
        tasks = [f"counter/train/{k:08d}" for k in range(9)]
        self.made = SimulatedRun(self.store_url, self.config, tasks, self.folder.path / "episodes")
        self.controller = self.made.controller()
        return self.controller.lease

    def _worker(self, index: int) -> Playing:
        self.stores.append(TimedStore(self.store_url, self.config.name))
        return Playing(index, self.stores[-1], self.urls)

    async def play_until(self, happened: Callable[[], bool], *, scales: bool = True) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not happened():
            assert time.monotonic() < deadline, self.notes
            self.controller.tick()
            self.supervisor.check()
            if scales:
                self.scaling.tick()
            await asyncio.sleep(0.05)


def test_a_run_that_needs_less_shrinks_while_it_goes_on_and_loses_nothing(tmp_path: Path):
    with private_redis(tmp_path / "redis") as url:
        run = ShrinkingRun(tmp_path, url)
        try:
            asyncio.run(_shrink(run))
        finally:
            run.supervisor.stop()


async def _shrink(run: ShrinkingRun) -> None:
    learner = InThread("learner", run.made.learn, pause_s=0)
    run.scaling.start()
    run.supervisor.wait("environment")
    learner.start()
    # A worker that the supervisor has not heard yet would be stopped, and not drained.
    await run.play_until(lambda: run.supervisor.states()["rollout", "running"] == 2, scales=False)
    await run.play_until(lambda: read_wanted(run.folder) == WantedNumbers(rollout=1, env=1))
    gone = {f"{one} has left" for one in ("rollout worker 1", "environment server 1")}
    await run.play_until(lambda: gone <= set(run.notes))
    steps = run.made.version.step
    await run.play_until(lambda: run.made.version.step > steps + 2)
    (last,) = run.scaling.workers.members
    run.supervisor.retire(last)
    await run.play_until(lambda: not run.supervisor.watches(last))
    run.made.end()
    learner.stop()
    accepted = [verdict for store in run.stores for _, verdict in store.commits].count("accepted")
    books = unaccounted(run.made.store, accepted, run.config.learner.group_size)
    assert books == {"groups lost": 0, "groups counted twice": 0, "episodes lost or doubled": 0}
    assert not any("died" in note for note in run.notes)
