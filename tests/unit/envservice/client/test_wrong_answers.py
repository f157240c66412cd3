"""Servers whose answers are none of the API's."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest

from envservice.client.client import EnvClient
from services.errors import EnvFault

INFO = {"name": "toy", "engine": "toy", "version": "1", "replay": "pure", "splits": {}}
Answer = Callable[[httpx.Request], httpx.Response]


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
    async with asking(lambda _: httpx.Response(200, content=b"<html>\nWelcome"), timeout_s=0.2) as client:
        with pytest.raises(EnvFault, match=r"no answer within .*; last: http://toy/v1/info answered with no Info: "
                                           r"b'<html>\\nWelcome'$"):
            await client.info()
        with pytest.raises(EnvFault, match="last: http://toy/v1/tasks/train answered with no TaskList: "):
            await client.tasks("train")
