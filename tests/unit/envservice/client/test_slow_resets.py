"""Slow resets are carried out once and leave no session behind. A live session has one server, which is waited for.

The servers run in threads of this process and are asked over real HTTP: they go on with a request whose client has
left, as in a run.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
from holding_server import answer_beside_held
from toy_environment import ToyEnvironment, ToySession

from envservice.base import Outcome, Replay
from envservice.client import request_batching
from envservice.client.client import EnvClient
from envservice.server.app import Settings, create_app
from services.errors import EnvFault
from services.http.server import bind, serving_in_thread

TASK = "toy/train/00"
SLOW_S = 0.2


class SlowSession(ToySession):
    seconds = 0.0

    def reset(self) -> Outcome:
        time.sleep(self.seconds)
        return super().reset()


class SlowEnvironment(ToyEnvironment):
    """Counts the sessions that were opened. Each takes `seconds` to reset."""

    def __init__(self, seconds: float, replay: Replay = "pure") -> None:
        super().__init__()
        self.seconds, self.replay = seconds, replay
        self.opened = 0

    def open(self, task: str) -> ToySession:
        self.opened += 1
        session = SlowSession(task, "")
        session.seconds = self.seconds
        return session


@dataclass(frozen=True)
class Server:
    url: str
    environment: SlowEnvironment

    def sessions(self) -> float:
        """Returns the number of sessions that it holds."""
        lines = httpx.get(f"{self.url}/metrics", timeout=60, trust_env=False).text.splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith("gagpo_env_sessions "))


@contextlib.contextmanager
def serving(*environments: SlowEnvironment) -> Iterator[list[Server]]:
    with contextlib.ExitStack() as stack:
        servers: list[Server] = []
        for environment in environments:
            listener = bind("127.0.0.1", 0)
            app = create_app(environment, Settings(threaded=True))
            stack.enter_context(serving_in_thread(app, listener, local_only=True, name="environment"))
            servers.append(Server(f"http://127.0.0.1:{listener.getsockname()[1]}", environment))
        yield servers


@pytest.fixture
def copies_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_batching, "AGAIN_S", 2 * SLOW_S)


@pytest.mark.usefixtures("copies_soon")
@pytest.mark.parametrize(("replay", "answer_s"), [("pure", 10 * SLOW_S), ("live", 7 * SLOW_S)])
async def test_resets_that_take_long_together_are_each_carried_out_once(replay: Replay, answer_s: float):
    """All eight take longer than the pause before a copy. The live ones also take longer than an answer may."""
    with serving(SlowEnvironment(SLOW_S, replay)) as (server,):
        async with EnvClient([server.url], timeout_s=3 * answer_s) as client:
            await client.info()
            episodes = [client.episode(str(number), TASK) for number in range(8)]
            await asyncio.gather(*(episode.reset() for episode in episodes))
            assert server.environment.opened == 8
            assert server.sessions() == 8
            await asyncio.gather(*(episode.close() for episode in episodes))
        assert server.sessions() == 0


@pytest.mark.parametrize("replay", ["pure", "live"])
async def test_a_reset_that_is_asked_again_gets_the_answer_of_the_first_one(replay: Replay):
    with serving(SlowEnvironment(1.0, replay)) as (server,):
        async with EnvClient([server.url], timeout_s=2.4) as client:
            await client.info()
            episode = client.episode("e", TASK)
            assert "Place 0" in (await episode.reset()).observation
            assert server.environment.opened == 1
            assert "Place 1" in (await episode.step("go on")).observation
    assert episode.replays == 0


async def test_an_episode_whose_reset_failed_frees_its_session():
    with serving(SlowEnvironment(1.0)) as (server,):
        async with EnvClient([server.url], timeout_s=0.5) as client:
            episode = client.episode("e", TASK)
            with pytest.raises(EnvFault, match="no answer within"):
                await episode.reset()
            while not server.sessions():  # noqa: ASYNC110 - the server's thread changes it
                await asyncio.sleep(0.05)
            await episode.close()
        assert server.sessions() == 0


async def test_a_session_that_a_slow_server_opened_in_vain_is_freed_too():
    with serving(SlowEnvironment(1.0), SlowEnvironment(0.0)) as (slow, fast):
        async with EnvClient([slow.url, fast.url], timeout_s=1.5) as client:
            name = next(name for name in map(str, range(100)) if client.ranking(name)[0].url == slow.url)
            episode = client.episode(name, TASK)
            await episode.reset()
            assert fast.sessions() == 1
            while not slow.sessions():  # noqa: ASYNC110 - the server's thread changes it
                await asyncio.sleep(0.05)
            await episode.close()
        assert (slow.sessions(), fast.sessions()) == (0, 0)


async def test_a_live_reset_without_an_answer_is_asked_again_only_at_its_server():
    """Another server would act on the world a second time."""
    with serving(SlowEnvironment(1.0, "live"), SlowEnvironment(0.0, "live")) as (slow, fast):
        async with EnvClient([slow.url, fast.url], timeout_s=2.4) as client:
            await client.info()
            name = next(name for name in map(str, range(100)) if client.ranking(name)[0].url == slow.url)
            episode = client.episode(name, TASK)
            await episode.reset()
            assert (slow.environment.opened, fast.environment.opened) == (1, 0)


async def test_a_live_reset_that_reached_no_server_is_asked_at_another_one():
    with serving(SlowEnvironment(0.0, "live"), SlowEnvironment(0.0, "live")) as (gone, fast):
        async with EnvClient([gone.url, fast.url], timeout_s=60) as client:
            await client.info()
            client.use(["http://127.0.0.1:9", fast.url])
            name = next(name for name in map(str, range(100)) if client.ranking(name)[0].url != fast.url)
            await client.episode(name, TASK).reset()
            assert fast.environment.opened == 1


async def test_a_request_needs_no_place_beside_many_that_are_not_answered():
    """Resets of many slow servers took all connections, and a server that had not been asked was called silent."""
    def client(url: str) -> httpx.AsyncClient:
        http = EnvClient([url])._http
        http.base_url = url
        return http

    assert await answer_beside_held(120, client) == 200


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
