"""The shell of the rollout worker before its engine plays: real Redis, a real environment server that comes late."""

import asyncio
from pathlib import Path

from ports import likely_port

from envservice.client.client import EnvClient
from rollout.actor import RolloutHost
from services.config.tree import Config
from services.telemetry.heartbeat import NO_SERVERS, decode


def host_of(run: str, folder: Path) -> RolloutHost:
    return RolloutHost(
        config_json=Config(name=run, steps=1).model_dump_json(), run=run, worker="rollout-0", store_url="",
        env_urls=[], model_path="", weights_actor_name="", folder=str(folder))


async def test_a_worker_that_starts_while_environment_servers_are_away_says_that_it_waits(store, serve_toy, tmp_path):
    port = likely_port()
    host = host_of("late", tmp_path)
    async with EnvClient([f"http://127.0.0.1:{port}"], outage_s=240) as client, asyncio.timeout(200):
        asking = asyncio.create_task(host._environment(client, store))
        while (beat := decode(await asyncio.to_thread(store.state.beats)).get("rollout-0")) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert (beat.role, beat.doing) == ("rollout", NO_SERVERS)
        assert not asking.done()
        await asyncio.to_thread(serve_toy, port)
        assert (await asking).name == "toy"


async def test_a_worker_follows_servers_that_have_moved_while_it_loaded_its_model(store, serve_toy, tmp_path):
    """A server that a cluster starts again is on another node. The worker was made with its old address."""
    _, url = serve_toy()
    store.state.publish_servers(store.leases.acquire("controller", "c"), [url])
    host = host_of("moved", tmp_path)
    async with EnvClient([f"http://127.0.0.1:{likely_port()}"], outage_s=240) as client, asyncio.timeout(60):
        assert (await host._environment(client, store)).name == "toy"


async def test_a_worker_whose_servers_answer_sends_no_heartbeat_before_it_works(store, serve_toy, tmp_path):
    _, url = serve_toy()
    host = host_of("prompt", tmp_path)
    async with EnvClient([url]) as client:
        await host._environment(client, store)
    assert store.state.beats() == {}


async def test_a_worker_that_is_drained_while_it_waits_for_servers_takes_no_ticket(tmp_path):
    """It has sent heartbeats by then, so the supervisor asks it to drain and does not stop it."""
    class Loop:
        drained = 0

        def drain(self) -> None:
            self.drained += 1

    host = host_of("early", tmp_path)
    await host.drain()
    loop = host._begun(Loop())
    assert loop.drained == 1
    await host.drain()
    assert loop.drained == 2
