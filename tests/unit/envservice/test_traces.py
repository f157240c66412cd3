"""Spans of an environment server, asked of a real app through ASGI: each below what asked for it."""

import asyncio

import httpx
import pytest
from collector import Collector
from toy_environment import ToyEnvironment

from envservice.client.client import EnvClient
from envservice.server.app import Settings, create_app
from envservice.wire.schemas import TRACES_HEADER
from services.errors import EnvFault
from services.telemetry.tracing import span, tracing


class Wire(httpx.ASGITransport):
    """The way to the app, with the headers that went over it."""

    def __init__(self) -> None:
        self.toy = create_app(ToyEnvironment(), Settings())
        super().__init__(self.toy)
        self.headers: list[httpx.Headers] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.headers.append(request.headers)
        await asyncio.sleep(0.001)
        return await super().handle_async_request(request)


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    made, plain = Wire(), httpx.AsyncClient
    monkeypatch.setattr(httpx, "AsyncClient", lambda **options: plain(**{**options, "transport": made}))
    return made


async def play(client: EnvClient, name: str, task: str = "toy/train/00") -> None:
    with span("episode", ticket=name):
        game = client.episode(name, task)
        await game.reset()
        await game.step("wait")


async def test_episodes_that_share_a_request_keep_their_traces_apart(wire: Wire, collector: Collector):
    with tracing(collector.url, process="both", run="r"):
        async with EnvClient(["http://toy"], timeout_s=10) as client:
            await asyncio.gather(*(play(client, str(n)) for n in range(12)))
    assert len(wire.headers) < 24
    episodes = {told.id: told for told in collector.named("episode")}
    for verb in ("reset", "step"):
        asked = {told.id: told for told in collector.named(f"environment {verb}")}
        served = collector.named(f"serve {verb}")
        assert len(asked) == len(served) == len(episodes) == 12
        assert {told.parent for told in served} == set(asked)
        assert {told.parent for told in asked.values()} == set(episodes)
        assert all(told.trace == asked[told.parent].trace for told in served)
        assert all(told.facts == {"server": "http://toy", "rebuilt": False} for told in asked.values())


async def test_a_rebuilt_session_and_a_refusal_are_told_as_such(wire: Wire, collector: Collector):
    with tracing(collector.url, process="both", run="r"):
        async with EnvClient(["http://toy"], timeout_s=10) as client:
            with span("episode", ticket="t"):
                game = client.episode("e", "toy/train/00")
                await game.reset()
                wire.toy.state.batches.drop_all()
                await game.step("wait")
                with pytest.raises(EnvFault):
                    await client.episode("f", "toy/train/none").reset()
    assert len(collector.named("serve rebuild")) == 1
    assert collector.named("environment step")[0].facts["rebuilt"] is True
    refused = [told for told in collector.spans if told.error]
    assert [(told.name, told.facts["error.type"]) for told in refused] == [("serve reset", "Problem")]


async def test_without_traces_no_request_says_anything_of_them(wire: Wire):
    async with EnvClient(["http://toy"], timeout_s=10) as client:
        await play(client, "t")
    assert len(wire.headers) == 2
    assert not any(TRACES_HEADER in headers for headers in wire.headers)


async def test_a_server_that_does_not_trace_answers_a_client_that_does(wire: Wire):
    async with httpx.AsyncClient(base_url="http://toy") as http:
        for value in ("00-" + "a" * 32 + "-" + "b" * 16 + "-01", "nonsense,,", ""):
            reply = await http.post("/v1/episodes:reset", json=[{"episode_id": "e", "task": "toy/train/00"}],
                                    headers={TRACES_HEADER: value})
            assert reply.status_code == httpx.codes.OK
