"""Autoscaling between its bounds: real environment servers and a real store; rollout workers are only heartbeats."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from scripted_member import Scripted

from deploy.launch.scaling import Scaling
from deploy.launch.topology import Topology
from deploy.members.env_server import EnvServer
from deploy.runs.configs import load_config
from deploy.runs.folder import RunFolder
from deploy.runs.wanted import WantedNumbers, read_wanted
from envservice.client.client import EnvClient, EpisodeHandle
from services.config.file import dump_config
from services.controller.fleet import Fleet
from services.controller.supervise import Supervisor
from services.process.addresses import free_port
from services.store.redis_server import private_redis
from services.store.store import Store
from services.telemetry.heartbeat import Pulse

pytestmark = pytest.mark.timeout(900)
DEADLINE_S = 300.0
SETTINGS = ("env.name=tests.toys.counter:SPEC", "env.max_sessions=8", "rollout.slots=4", "autoscale.pause_seconds=1",
            "autoscale.rollout=[1,3]", "autoscale.env=[1,2]", "autoscale.ticket_wait_seconds=1000",
            "autoscale.request_seconds=1000")  # requests are never that slow: sessions alone decide


class Cluster:
    """The scaling of one run, the sessions that its players hold, and the heartbeats of its workers."""

    def __init__(self, folder: Path, url: str) -> None:
        dump_config(load_config("alfworld-tiny", SETTINGS), folder / "config.yaml")
        config = load_config(folder / "config.yaml")
        self.store, self.folder, self.notes = Store(url, folder.name), RunFolder(folder), list[str]()
        self.supervisor = Supervisor(self.notes.append, config.supervision, beats=self.store.beats)
        parts = Topology(
            config=config, run=folder.name, folder=folder, store=self.store, store_url=url, given_urls=lambda: (),
            weights=None, weights_name="", supervisor=self.supervisor,
            servers=Fleet(self.supervisor, lambda index: EnvServer(index, free_port(), folder / "config.yaml", folder)))
        self.urls = parts.urls
        self.scaling = Scaling(parts, self.store.acquire("controller", "test", ttl_s=3600), self._worker,
                               note=self.notes.append)
        self._pulses: dict[str, Pulse] = {}

    def _worker(self, index: int) -> Scripted:
        self._pulses[f"rollout-{index}"] = Pulse(f"rollout-{index}", "rollout")
        return Scripted(f"rollout worker {index}", [], beat=f"rollout-{index}")

    def beat(self, wait_s: float, playing: int) -> None:
        """Sends a heartbeat of each worker: one more episode has begun, after its ticket has waited so long."""
        for name, pulse in self._pulses.items():
            pulse.meters("gagpo_rollout_queue_seconds").observe(wait_s)
            pulse.meters("gagpo_rollout_tickets", state="playing").set(playing)
            self.store.beat(name, pulse.beat(), ttl_s=600)

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
