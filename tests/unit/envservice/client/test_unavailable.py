"""A service behind the environment is away: episodes wait. A call without any answer names its config key."""

import asyncio
from typing import Any

import httpx
import pytest
from toy_environment import ToyEnvironment

from envservice.client import client as client_module
from envservice.client.client import EnvClient
from envservice.client.request_batching import Unreachable
from envservice.server.app import Settings, create_app
from services.errors import EnvFault, Unavailable

TASK = "toy/train/00"


class Outages:
    """The next `left` calls of sessions find the service away."""

    def __init__(self) -> None:
        self.left = 0
        self.client: EnvClient | None = None
        self.seen: list[bool] = []
        """Whether all servers were away, as the client knew at each call."""

    def ask(self) -> None:
        self.seen.append(self.client is not None and self.client.away)
        if self.left:
            self.left -= 1
            raise Unavailable("the library is closed")


class Served(ToyEnvironment):
    """A game whose every step asks the service first."""

    def __init__(self, outages: Outages, replay: str) -> None:
        super().__init__()
        self.replay, self.outages = replay, outages

    def open(self, task: str) -> Any:
        session = super().open(task)
        usual_reset, usual_step = session.reset, session.step

        def reset() -> Any:
            self.outages.ask()
            return usual_reset()

        def step(action: str) -> Any:
            self.outages.ask()
            return usual_step(action)

        session.reset, session.step = reset, step
        return session


def client_of(outages: Outages, monkeypatch: pytest.MonkeyPatch, *, replay: str = "pure", **limits: float) -> EnvClient:
    """Returns a client of two servers that ask the same service."""
    plain = httpx.AsyncClient
    apps = {f"http://{host}": httpx.ASGITransport(create_app(Served(outages, replay), Settings()))
            for host in ("one", "two")}
    monkeypatch.setattr(httpx, "AsyncClient", lambda **options: plain(**options, mounts=apps))
    monkeypatch.setattr(client_module, "LATER_S", 0.01)
    outages.client = EnvClient([*apps], **limits)
    return outages.client


@pytest.mark.parametrize("replay", ["pure", "live"])
async def test_an_episode_goes_on_when_the_service_is_back(replay: str, monkeypatch: pytest.MonkeyPatch):
    """Each search that found no retriever was a failed attempt, so a minute without one ended the run."""
    outages = Outages()
    async with client_of(outages, monkeypatch, replay=replay, attempts=1) as client:
        await client.info()
        episode = client.episode("e", TASK)
        outages.left = 5
        await episode.reset()
        outages.left = 5
        assert "Place 1" in (await episode.step("go on")).observation
        assert outages.left == 0
        assert True in outages.seen, "the client must be able to tell what it waits for"
        assert not client.away
        assert "Place 2" in (await episode.step("go on")).observation


async def test_a_live_episode_waits_where_it_is(monkeypatch: pytest.MonkeyPatch):
    """No other server can go on with it, and each refusal of one would count as a failure."""
    outages = Outages()
    async with client_of(outages, monkeypatch, replay="live", attempts=3) as client:
        await client.info()
        episode = client.episode("e", TASK)
        await episode.reset()
        outages.left = 20
        assert "Place 1" in (await episode.step("go on")).observation


async def test_a_service_that_stays_away_is_a_fault_in_the_end(monkeypatch: pytest.MonkeyPatch):
    outages = Outages()
    async with client_of(outages, monkeypatch, timeout_s=0.2, outage_s=0.5) as client:
        episode = client.episode("e", TASK)
        await episode.reset()
        outages.left = 10**6
        with pytest.raises(EnvFault, match=r"env\.outage_seconds.*the library is closed"):
            await episode.step("go on")
        outages.left = 0
        assert "Place 1" in (await episode.step("go on")).observation


async def away(replica):
    replica.failed()
    raise Unreachable("it is away")


async def hangs(_):
    await asyncio.Event().wait()


@pytest.mark.parametrize(("ask", "outage_s", "key"), [
    (away, 0.2, "env.outage_seconds"), (away, None, "env.call_seconds"), (hangs, 60, "env.call_seconds")])
async def test_the_key_is_that_of_the_time_which_ran_out(ask, outage_s, key):
    async with EnvClient(["http://127.0.0.1:9"], timeout_s=0.05, outage_s=outage_s) as client:
        with pytest.raises(EnvFault, match=rf"no answer within .* s \({key}\); last: "):
            await client.call(lambda: client.ranking("an episode"), ask)


async def test_a_call_that_hangs_has_asked_also_where_other_calls_had_failed():
    async with EnvClient(["http://127.0.0.1:9"], timeout_s=0.5) as client:
        client._replicas[0].failed()  # for a twentieth of a second at most
        with pytest.raises(EnvFault, match=r"last: no failure$"):
            await client.call(lambda: client.ranking("an episode"), hangs)


async def test_a_call_that_waits_in_line_names_what_shortens_the_line():
    """A server steps one game at a time. The line had `last: None` and no word of the others."""
    async with EnvClient(["http://127.0.0.1:9"], timeout_s=0.2, outage_s=60) as client:
        def call():
            return asyncio.create_task(client.call(lambda: client.ranking("an episode"), hangs))

        first = call()
        await asyncio.sleep(0.05)
        later = [call(), call()]
        with pytest.raises(EnvFault, match=(
                r"no answer within .* s \(env\.call_seconds\); last: no failure; 2 other calls waited too: "
                r"give more env\.servers or fewer rollout\.slots$")):
            await first
        for other in later:
            with pytest.raises(EnvFault):
                await other
