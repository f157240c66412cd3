"""A live session has one server: the client waits for it, and asks no other one to go on."""

import httpx
import pytest
from toy_environment import ToyEnvironment

from envservice.client.client import EnvClient
from envservice.server.app import Settings, create_app
from services.errors import EnvFault

TASK = "toy/train/00"


class LiveEnvironment(ToyEnvironment):
    replay = "live"


class Servers(httpx.AsyncBaseTransport):
    """Two servers of a live environment. The next `slow` step requests to the server that plays time out."""

    def __init__(self) -> None:
        self.apps = {host: httpx.ASGITransport(create_app(LiveEnvironment(), Settings())) for host in ("one", "two")}
        self.home = ""
        """The server that was reset."""
        self.slow = 0
        self.asked: list[str] = []
        """The hosts that were asked to step, in order."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        host = request.url.host
        if request.url.path.endswith("reset"):
            self.home = host
        if request.url.path.endswith("step"):
            self.asked.append("home" if host == self.home else "other")
            if host == self.home and self.slow:
                self.slow -= 1
                raise httpx.ReadTimeout("slow", request=request)
        return await self.apps[host].handle_async_request(request)


def client_of(servers: Servers, monkeypatch: pytest.MonkeyPatch, **limits: float) -> EnvClient:
    plain = httpx.AsyncClient
    monkeypatch.setattr(httpx, "AsyncClient", lambda **options: plain(**{**options, "transport": servers}))
    return EnvClient(["http://one", "http://two"], **limits)


async def test_a_slow_server_keeps_its_live_episode(monkeypatch: pytest.MonkeyPatch):
    servers = Servers()
    async with client_of(servers, monkeypatch) as client:
        episode = client.episode("e", TASK)
        await episode.reset()
        servers.slow = 3
        assert "Place 1" in (await episode.step("go on")).observation
        assert servers.asked.count("home") == 4
        assert servers.asked.count("other") <= 1
        assert "Place 2" in (await episode.step("go on")).observation
    assert episode.replays == 0


async def test_a_server_that_has_lost_its_live_session_ends_the_episode(monkeypatch: pytest.MonkeyPatch):
    servers = Servers()
    async with client_of(servers, monkeypatch) as client:
        episode = client.episode("e", TASK)
        await episode.reset()
        servers.apps[servers.home] = httpx.ASGITransport(create_app(LiveEnvironment(), Settings()))  # it began anew
        with pytest.raises(EnvFault, match="session_lost"):
            await episode.step("go on")
    assert servers.asked == ["home"]


async def test_a_server_that_has_left_the_list_ends_its_live_episodes(monkeypatch: pytest.MonkeyPatch):
    servers = Servers()
    async with client_of(servers, monkeypatch) as client:
        episode = client.episode("e", TASK)
        await episode.reset()
        client.use([f"http://{host}" for host in servers.apps if host != servers.home])
        with pytest.raises(EnvFault, match="session_lost"):
            await episode.step("go on")


async def test_a_server_that_stays_away_is_given_up_though_nobody_else_asks(monkeypatch: pytest.MonkeyPatch):
    """The other server answers, so this is no outage: the call does not wait for outage_s."""
    servers = Servers()
    async with client_of(servers, monkeypatch, attempts=4, outage_s=3600) as client:
        episode = client.episode("e", TASK)
        await episode.reset()
        servers.slow = 1000
        with pytest.raises(EnvFault, match="4 requests failed"):
            await episode.step("go on")
    assert servers.asked.count("other") == 1
