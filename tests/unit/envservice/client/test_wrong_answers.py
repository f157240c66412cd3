"""Servers whose answers are none of the API's: a proxy's page, one without end, one that inflates to gigabytes."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from envservice.client.client import EnvClient
from services.errors import EnvFault

INFO = {"name": "toy", "engine": "toy", "version": "1", "replay": "pure", "splits": {}}
RESULT = {"observation": "hall", "admissible_actions": [], "reward": 0.0, "done": False, "won": False, "info": {},
          "digest": "0"}
TASK = "toy/train/00"
MIB = 1 << 20
Answer = Callable[[httpx.Request], httpx.Response]


class Body(httpx.AsyncByteStream):
    """A body that comes in parts, and counts the bytes that were taken of it."""

    def __init__(self, part: bytes, parts: int) -> None:
        self.part, self.parts, self.taken = part, parts, 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for _ in range(self.parts):
            self.taken += len(self.part)
            yield self.part


@pytest.fixture
def asking(monkeypatch: pytest.MonkeyPatch) -> Callable[..., EnvClient]:
    """Makes a client of a server that answers as it is told."""
    plain = httpx.AsyncClient

    def made(answer: Answer, *, timeout_s: float = 60.0) -> EnvClient:
        transport = httpx.MockTransport(answer)
        monkeypatch.setattr(httpx, "AsyncClient", lambda **options: plain(**{**options, "transport": transport}))
        return EnvClient(["http://toy"], timeout_s=timeout_s)

    return made


@pytest.mark.parametrize("wrong", [b"<html>the server starts</html>", b"[]", b'{"name": "toy"}'])
async def test_info_is_asked_for_again_until_it_is_one(asking: Callable[..., EnvClient], wrong: bytes):
    """A proxy may answer for a server that starts. The worker died of it, after it had loaded its engine."""
    left = [wrong, wrong]
    async with asking(lambda _: httpx.Response(200, content=left.pop() if left else json.dumps(INFO))) as client:
        assert (await client.info()).engine == "toy"
    assert left == []


async def test_a_server_that_never_says_what_it_plays_is_a_fault_that_names_it(asking: Callable[..., EnvClient]):
    """Each call has a client of its own: after a failure, a server is left alone for longer than this time."""
    def wrong(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=b"<html>\nWelcome")

    async with asking(wrong, timeout_s=0.2) as client:
        with pytest.raises(EnvFault, match=r"no answer within .*; last: http://toy/v1/info answered with no Info: "
                                           r"b'<html>\\nWelcome'$"):
            await client.info()
    async with asking(wrong, timeout_s=0.2) as client:
        with pytest.raises(EnvFault, match="last: http://toy/v1/tasks/train answered with no TaskList: "):
            await client.tasks("train")


async def test_a_call_that_a_failing_server_is_spared_says_so(asking: Callable[..., EnvClient]):
    """It said `last: no failure`."""
    async with asking(lambda _: httpx.Response(200), timeout_s=0.2) as client:
        for _ in range(10):
            client._replicas[0].failed()  # each doubles the pause
        with pytest.raises(EnvFault, match=r"last: not asked, since all servers had failed in other calls$"):
            await client.info()


@pytest.mark.attack
@pytest.mark.parametrize("places", ["x", "0,1.5", "1e9", "0;"])
async def test_a_wrong_header_of_replays_is_a_fault_that_names_the_server(
        asking: Callable[..., EnvClient], places: str):
    """Python's error about a number ended the worker."""
    reply = httpx.Response(200, json=[RESULT], headers={"gagpo-replays": places})
    async with asking(lambda _: reply, timeout_s=0.2) as client:
        with pytest.raises(EnvFault, match=rf"http://toy/v1/.* sent gagpo-replays: {places!r:.60}, which is no list"):
            await client.episode("e", TASK).reset()


@pytest.mark.attack
@pytest.mark.parametrize(("ask", "most"), [("info", 3), ("reset", 5)])
async def test_an_answer_without_end_is_not_read_to_its_end(
        asking: Callable[..., EnvClient], monkeypatch: pytest.MonkeyPatch, ask: str, most: int):
    monkeypatch.setattr("envservice.client.request_batching.LIST_BYTES", 3 * MIB)
    bodies: list[Body] = []

    def answer(_: httpx.Request) -> httpx.Response:
        bodies.append(Body(bytes(MIB), 1000))
        return httpx.Response(200, stream=bodies[-1])

    async with asking(answer, timeout_s=1) as client:
        with pytest.raises(EnvFault, match=f"its answer has more than {most} MiB"):
            await (client.info() if ask == "info" else client.episode("e", TASK).reset())
    assert {body.taken for body in bodies} == {(most + 1) * MIB}


@pytest.mark.attack
@pytest.mark.parametrize("ask", ["info", "reset"])
async def test_an_answer_that_would_be_inflated_is_not_read_at_all(asking: Callable[..., EnvClient], ask: str):
    """300 MiB were 306 kB on the wire, and were inflated and parsed."""
    body, asked = Body(gzip.compress(bytes(300 * MIB)), 1), set[str]()

    def answer(request: httpx.Request) -> httpx.Response:
        asked.add(request.headers["accept-encoding"])
        return httpx.Response(200, headers={"content-encoding": "gzip"}, stream=body)

    async with asking(answer, timeout_s=0.5) as client:
        with pytest.raises(EnvFault, match="its answer is compressed, and the client takes none that is"):
            await (client.info() if ask == "info" else client.episode("e", TASK).reset())
    assert (asked, body.taken) == ({"identity"}, 0)


async def test_one_large_observation_is_taken(asking: Callable[..., EnvClient]):
    result = RESULT | {"observation": "x" * 4 * MIB}
    async with asking(lambda _: httpx.Response(200, json=[result])) as client:
        assert len((await client.episode("e", TASK).reset()).observation) == 4 * MIB


async def test_a_reward_beyond_the_limit_is_a_fault_and_one_at_the_limit_is_taken(asking: Callable[..., EnvClient]):
    rewards = iter([-1e6, 1.1e6])
    async with asking(lambda _: httpx.Response(200, json=[RESULT | {"reward": next(rewards)}])) as client:
        assert (await client.episode("e", TASK).reset()).reward == -1e6
        with pytest.raises(EnvFault, match=r"^the reward is 1.1e\+06, and at most 1e\+06 in size is taken "
                                           r"\(toy/train/00 at step 0 on http://toy\)$"):
            await client.episode("f", TASK).reset()
