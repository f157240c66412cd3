"""Requests that a web page can make a browser send are refused, and those beyond the capacity of a server."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse

from services.http.server import Admission

pytestmark = pytest.mark.attack


async def application(scope, receive, send) -> None:
    await PlainTextResponse("in")(scope, receive, send)


async def ask(headers: dict[str, str], *, method: str = "POST", local_only: bool = True) -> int:
    transport = httpx.ASGITransport(Admission(application, local_only=local_only, capacity=8))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8100") as http:
        return (await http.request(method, "/", headers=headers)).status_code


@pytest.mark.parametrize("host", ["127.0.0.1:8100", "localhost", "LOCALHOST:1", "[::1]:8100", "127.8.9.1"])
async def test_without_a_token_this_machine_is_answered(host):
    assert await ask({"host": host}) == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8100", "localhost.evil.example", "", "[", "10.0.0.1"])
async def test_without_a_token_another_host_is_refused(host):
    assert await ask({"host": host}) == 421
    assert await ask({"host": host}, local_only=False) == 200, "a page cannot know the token"


@pytest.mark.parametrize(("origin", "status"), [
    ("http://127.0.0.1:8100", 200), ("http://evil.example", 403), ("null", 403), ("http://127.0.0.1:9000", 403)])
async def test_pages_of_another_server_are_refused(origin, status):
    for method in ("GET", "POST"):
        assert await ask({"origin": origin}, method=method) == status
        assert await ask({"origin": origin}, method=method, local_only=False) == status


@pytest.mark.parametrize(("kind", "status"), [
    ("application/json", 200), ("application/json; charset=utf-8", 200), ("text/plain", 415),
    ("application/x-www-form-urlencoded", 415), ("multipart/form-data; boundary=x", 415)])
async def test_a_body_that_a_form_could_send_is_refused(kind, status):
    assert await ask({"content-type": kind}) == status
    assert await ask({"content-type": kind}, method="GET") == 200, "a GET has no body to be misread"


async def test_a_refusal_quotes_the_header_as_text():
    transport = httpx.ASGITransport(Admission(application, local_only=True, capacity=8))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8100") as http:
        texts = [(await http.post("/", headers=headers)).text for headers in (
            {"host": "evil"}, {"origin": "http://evil"}, {"content-type": "text/plain"})]
    assert texts == ["this server has no token, so it answers only to localhost, not to 'evil'",
                     "pages of 'http://evil' may not use this server", "send application/json instead of 'text/plain'"]


async def test_a_request_to_upgrade_the_protocol_is_refused():
    assert await ask({"upgrade": "websocket", "connection": "upgrade"}, method="GET") == 400


async def test_a_client_that_leaves_is_no_error():
    async def reads(scope, receive, send) -> None:
        await Request(scope, receive).body()

    async def gone():
        return {"type": "http.disconnect"}

    async def never(message) -> None:
        raise AssertionError(message)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    with pytest.raises(ClientDisconnect):
        await reads(scope, gone, never)
    await Admission(reads, local_only=False, capacity=8)(scope, gone, never)


async def test_a_request_beyond_the_capacity_is_told_when_to_ask_again():
    working, release = asyncio.Event(), asyncio.Event()

    async def slow(scope, receive, send) -> None:
        working.set()
        await release.wait()
        await application(scope, receive, send)

    transport = httpx.ASGITransport(Admission(slow, local_only=True, capacity=1))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8100") as http:
        first = asyncio.create_task(http.get("/"))
        await working.wait()
        refused = await http.get("/")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        release.set()
        assert (await first).status_code == 200
        assert (await http.get("/")).status_code == 200, "the first request has left its place"
