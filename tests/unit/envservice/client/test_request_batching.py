"""Micro-batches, sent to a real app through ASGI."""

import asyncio
from collections.abc import Callable

import httpx
import pytest
from toy_environment import ToyEnvironment

from envservice.client import request_batching
from envservice.client import request_batching as lanes
from envservice.client.client import EnvClient, EpisodeHandle
from envservice.server import sessions
from envservice.server.app import Settings, create_app
from services.errors import EnvFault

TASK = "toy/train/00"


class Wire(httpx.ASGITransport):
    """The transport to the app. It counts the elements of each request; `answer` may replace the app."""

    def __init__(self, settings: Settings, answer: Callable[[int], httpx.Response | None] = lambda n: None) -> None:
        super().__init__(create_app(ToyEnvironment(), settings))
        self.sizes: list[int] = []
        self.answer = answer

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.sizes.append(request.content.count(b'"episode_id"'))
        await asyncio.sleep(0.001)
        return self.answer(len(self.sizes)) or await super().handle_async_request(request)


def client_over(wire: Wire, monkeypatch: pytest.MonkeyPatch, *, timeout_s: float = 60.0) -> EnvClient:
    plain = httpx.AsyncClient
    monkeypatch.setattr(httpx, "AsyncClient", lambda **options: plain(**{**options, "transport": wire}))
    return EnvClient(["http://toy"], timeout_s=timeout_s)


async def walk(client: EnvClient, name: str, count: int) -> None:
    episode = client.episode(name, TASK)
    await episode.reset()
    await steps(episode, count)


async def steps(episode: EpisodeHandle, count: int) -> None:
    for _ in range(count):
        await episode.step("wait")


async def started(client: EnvClient, count: int) -> list[EpisodeHandle]:
    episodes = [client.episode(str(number), TASK) for number in range(count)]
    await asyncio.gather(*(episode.reset() for episode in episodes))
    return episodes


@pytest.mark.parametrize("in_flight", [1, 2, 3])
async def test_all_that_is_queued_goes_together_and_nothing_is_left_behind(
    in_flight: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lanes, "IN_FLIGHT", in_flight)
    wire = Wire(Settings())
    async with client_over(wire, monkeypatch) as client, asyncio.timeout(60):
        episodes = await started(client, 32)
        assert wire.sizes == [1] * 32, "a reset may be slow, so each goes alone"
        await asyncio.gather(*(steps(episode, 10) for episode in episodes))
    assert sum(wire.sizes) == 32 * 11
    assert len(wire.sizes) <= 32 + 10 * in_flight + 2


async def test_a_request_is_bounded_in_elements_and_bytes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lanes, "BATCH", 8)
    wire = Wire(Settings())
    async with client_over(wire, monkeypatch) as client:
        await asyncio.gather(*(steps(episode, 1) for episode in await started(client, 20)))
        assert max(wire.sizes) == 8
        monkeypatch.setattr(lanes, "BATCH_BYTES", 10)
        wire.sizes.clear()
        await asyncio.gather(*(walk(client, f"more {n}", 1) for n in range(5)))
        assert wire.sizes == [1] * 10


async def test_a_call_that_is_cancelled_before_sending_is_left_out(monkeypatch: pytest.MonkeyPatch):
    wire = Wire(Settings())
    async with client_over(wire, monkeypatch) as client:
        going = [asyncio.create_task(walk(client, str(n), 3)) for n in range(4)]
        going[0].cancel()
        done = await asyncio.gather(*going, return_exceptions=True)
    assert [type(one) for one in done] == [asyncio.CancelledError, type(None), type(None), type(None)]


async def test_a_full_server_is_asked_again_when_it_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sessions, "RETRY_AFTER_S", 1.0)
    wire = Wire(Settings(max_sessions=1, lease_s=3600))
    async with client_over(wire, monkeypatch) as client:
        first, second = client.episode("a", TASK), client.episode("b", TASK)
        await first.reset()
        waiting = asyncio.create_task(second.reset())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await first.step("wait")
        assert first.replays == 0
        await first.close()
        await waiting
    assert len(wire.sizes) >= 5


async def test_nonsense_and_server_errors_are_tried_again(monkeypatch: pytest.MonkeyPatch):
    bad = {1: httpx.Response(502), 2: httpx.Response(200, content=b"<html>"), 3: httpx.Response(200, content=b"[]")}
    wire = Wire(Settings(), bad.get)
    async with client_over(wire, monkeypatch) as client:
        await client.episode("e", TASK).reset()
    assert len(wire.sizes) == 4


async def test_an_episode_outlasts_any_number_of_failures(monkeypatch: pytest.MonkeyPatch):
    """A server that is away for half an hour, or one of several that never comes back, fails more than 1024 times."""
    monkeypatch.setattr(lanes, "BACKOFF_S", (1e-6, 1e-6))
    wire = Wire(Settings(), lambda n: httpx.Response(500) if n <= 1100 else None)
    async with client_over(wire, monkeypatch) as client:
        await walk(client, "a", 1)
    assert len(wire.sizes) == 1102


@pytest.mark.parametrize("headers", [{}, {"retry-after": "1"}], ids=["away", "full"])
async def test_an_episode_is_over_although_its_server_refuses_to_close_it(
    headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    refusal = httpx.Response(503, headers=headers, request=httpx.Request("POST", "http://toy"))
    wire = Wire(Settings(), lambda number: refusal if number == 2 else None)
    async with client_over(wire, monkeypatch) as client:
        episode = client.episode("e", TASK)
        await episode.reset()
        await episode.close()
    assert len(wire.sizes) == 2


@pytest.mark.parametrize(("status", "text"), [(401, "401"), (413, "413"), (422, "422")])
async def test_a_refusal_is_a_fault_at_once(status: int, text: str, monkeypatch: pytest.MonkeyPatch):
    wire = Wire(Settings(), lambda _: httpx.Response(status, json={}, request=httpx.Request("POST", "http://toy")))
    async with client_over(wire, monkeypatch) as client:
        with pytest.raises(EnvFault, match=text):
            await client.episode("e", TASK).reset()
    assert len(wire.sizes) == 1


async def test_a_proxy_that_refuses_large_requests_gets_the_elements_one_by_one(monkeypatch: pytest.MonkeyPatch):
    refusal = httpx.Response(413, request=httpx.Request("POST", "http://toy"))
    wire = Wire(Settings(), lambda number: refusal if wire.sizes[number - 1] > 1 else None)
    async with client_over(wire, monkeypatch) as client:
        episodes = await started(client, 5)
        wire.sizes.clear()
        await asyncio.gather(*(steps(episode, 1) for episode in episodes))
    assert sorted(wire.sizes) == [1, 1, 1, 1, 1, 5]


@pytest.mark.parametrize(("status", "headers"), [(408, {}), (425, {}), (429, {}), (429, {"retry-after": "1"})])
async def test_a_load_balancer_that_asks_to_come_again_is_no_fault(
    status: int, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    refused = httpx.Response(status, headers=headers, request=httpx.Request("POST", "http://toy"))
    wire = Wire(Settings(), lambda number: refused if number == 1 else None)
    async with client_over(wire, monkeypatch) as client:
        await client.episode("e", TASK).reset()
    assert len(wire.sizes) == 2


async def test_an_answer_without_a_result_is_a_fault(monkeypatch: pytest.MonkeyPatch):
    wire = Wire(Settings(), lambda _: httpx.Response(200, json=[{"observation": "Hello."}]))
    async with client_over(wire, monkeypatch) as client:
        with pytest.raises(EnvFault, match="not a result"):
            await client.episode("e", TASK).reset()


class Swallowing(Wire):
    """Swallows the first request of each path: it gets no answer, as on a connection that is dead without a sign."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.paths: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.paths.append(request.url.path.rpartition(":")[2])
        if request.method == "POST" and self.paths.count(self.paths[-1]) == 1:
            await asyncio.Event().wait()
        return await super().handle_async_request(request)


async def test_a_request_without_an_answer_is_sent_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(request_batching, "AGAIN_S", 0.01)
    wire = Swallowing(Settings())
    async with client_over(wire, monkeypatch, timeout_s=300.0) as client, asyncio.timeout(120):
        await walk(client, "one", 1)
    assert set(wire.paths) == {"reset", "step"}
    assert min(map(wire.paths.count, wire.paths)) > 1


async def test_no_copy_of_a_reset_goes_to_a_live_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(request_batching, "AGAIN_S", 0.01)
    monkeypatch.setattr(ToyEnvironment, "replay", "live")
    wire = Swallowing(Settings())
    async with client_over(wire, monkeypatch) as client:
        await client.info()
        resetting = asyncio.create_task(client.episode("one", TASK).reset())
        async with asyncio.timeout(60):
            while "reset" not in wire.paths:  # noqa: ASYNC110 - the server changes it
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        assert wire.paths.count("reset") == 1
        resetting.cancel()


async def test_a_refused_copy_leaves_the_request_its_answer(monkeypatch: pytest.MonkeyPatch):
    """A server that is about to end takes no new connection, and still answers what it has."""
    monkeypatch.setattr(request_batching, "AGAIN_S", 0.01)
    refused, sent = asyncio.Event(), []

    async def send() -> httpx.Response:
        sent.append(len(sent))
        if len(sent) > 1:
            refused.set()
            raise httpx.ConnectError("refused")
        await refused.wait()
        await asyncio.sleep(0)
        return httpx.Response(200)

    assert (await request_batching.first_answer(send, once=False, within_s=60)).status_code == 200


async def test_the_last_error_counts():
    async def send() -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(httpx.ConnectError):
        await request_batching.first_answer(send, once=False, within_s=60)


class OneHangs(Wire):
    """The server that is asked first never answers again. The others serve."""

    hung = ""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.hung = self.hung or request.url.host
        if request.url.host == self.hung:
            await asyncio.Event().wait()
        return await super().handle_async_request(request)


async def test_the_copies_to_a_server_that_hangs_leave_time_for_another_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(request_batching, "AGAIN_S", 0.02)
    wire = OneHangs(Settings())
    plain = httpx.AsyncClient
    monkeypatch.setattr(httpx, "AsyncClient", lambda **options: plain(**{**options, "transport": wire}))
    async with EnvClient(["http://one", "http://two"], timeout_s=3) as client:
        await client.info()
        await walk(client, "e", 1)
