"""The client of an endpoint: what it tries again, and how long it waits."""

import asyncio
import heapq
import random
from collections.abc import Coroutine
from typing import Any

import httpx
import pytest
from holding_server import answer_beside_held
from scripted_endpoint import ASKED, GOOD, Clock, in_turn, model

from rollout.prompting.endpoint import endpoint_client, retry_after
from services.config.sections import PromptingSection
from services.errors import UserError


async def test_a_rate_limit_is_waited_for_as_long_as_the_server_says():
    """After the others the pauses are ours, also if the server says 0: all calls were sent again at once, for as long
    as prompting.wait_seconds. A status inside an answer is OpenRouter's: the first such one ended the evaluation."""
    clock = Clock()
    replies = in_turn(httpx.Response(429, headers={"retry-after": "7"}), httpx.Response(503),
                      httpx.ConnectError("refused"), httpx.Response(503, headers={"retry-after": "0"}),
                      httpx.Response(200, json={"error": {"code": 502}}), httpx.Response(200, json=GOOD))
    await model(replies, clock).ask(ASKED, seed=0)
    assert clock.slept == [7.0, 2.0, 4.0, 8.0, 16.0]


async def test_a_wait_is_told_with_its_reason():
    """The line about garbage after a good answer said only its status, 200, and a pause of 1.5 s was told as 2 s."""
    clock, lines = Clock(), list[str]()
    asked = model(in_turn(httpx.Response(200, json=GOOD), httpx.Response(200, text="{"),
                          httpx.Response(429, headers={"retry-after": "1.5"}), httpx.Response(200, json=GOOD)), clock)
    asked.report = lines.append
    for seed in range(2):
        await asked.ask(ASKED, seed=seed)
    assert len(lines) == 2
    assert "status 200, and no JSON (Input data was truncated): {); the next call is in 1 s" in lines[0]
    assert "status 429, Retry-After 1.5 s); the next call is in 1.5 s" in lines[1]


async def test_a_call_waits_for_the_limit_that_another_call_met():
    clock = Clock()
    asked = model(in_turn(httpx.Response(429, headers={"retry-after": "9"}), httpx.Response(200, json=GOOD),
                          httpx.Response(200, json=GOOD)), clock)
    asked._not_before = 104.0
    await asked.ask(ASKED, seed=0)
    assert clock.slept == [4.0, 9.0]
    await asked.ask(ASKED, seed=1)
    assert clock.slept == [4.0, 9.0]


async def test_a_limit_beyond_the_deadline_ends_at_once():
    clock = Clock()
    with pytest.raises(UserError, match=r"status 429.*prompting.wait_seconds is 60"):
        await model(in_turn(httpx.Response(429, headers={"retry-after": "61"})), clock, wait_seconds=60).ask(
            ASKED, seed=0)
    assert not clock.slept


async def test_pauses_stay_at_a_minute_however_long_an_outage_lasts():
    """After 1,024 of them, the power of two was no number any more."""
    clock = Clock()
    with pytest.raises(UserError, match="status 500"):
        await model(lambda _: httpx.Response(500), clock, wait_seconds=86_400).ask(ASKED, seed=0)
    assert clock.slept[:8] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert len(clock.slept) > 1024


async def test_failures_end_after_the_deadline():
    """1 + 2 + 4 + 8 = 15 s of waiting fit into 20 s, 16 s more do not."""
    clock = Clock()
    with pytest.raises(UserError, match="status 500"):
        await model(lambda _: httpx.Response(500), clock, wait_seconds=20).ask(ASKED, seed=0)
    assert clock.slept == [1.0, 2.0, 4.0, 8.0]


class VirtualTime:
    """A clock that goes on to the next end of a pause once every call waits for one."""

    def __init__(self) -> None:
        self.now = 0.0
        self._pauses: list[tuple[float, int, asyncio.Future[None]]] = []

    async def sleep(self, seconds: float) -> None:
        end = asyncio.get_running_loop().create_future()
        heapq.heappush(self._pauses, (self.now + seconds, len(self._pauses) + random.getrandbits(40), end))
        await end

    async def run(self, *calls: Coroutine[Any, Any, object]) -> None:
        tasks = [asyncio.create_task(call) for call in calls]
        while not all(task.done() for task in tasks):
            for _ in range(200):
                await asyncio.sleep(0)
            if self._pauses:
                at, _, end = heapq.heappop(self._pauses)
                self.now = max(self.now, at)
                end.set_result(None)
        for task in tasks:
            task.result()


async def test_an_answer_that_was_cut_on_its_way_is_asked_for_again_once_others_were_whole():
    """The first answer may be a page of another server, which stays what it is."""
    clock, cut = Clock(), httpx.Response(200, text='{"id": "x", "choices": [{"mess')
    asked = model(in_turn(httpx.Response(200, json=GOOD), cut, httpx.Response(200, json=GOOD)), clock)
    for seed in range(2):
        await asked.ask(ASKED, seed=seed)
    assert clock.slept == [1.0]
    with pytest.raises(UserError, match="no JSON"):
        await model(in_turn(cut), clock).ask(ASKED, seed=0)


async def test_a_limit_without_a_time_slows_calls_down_to_it_and_not_to_a_minute_each():
    """Two calls a second may pass, and eight agents ask. Each failed call had doubled the pause of all."""
    time = VirtualTime()
    left, at = 2.0, 0.0

    def answer(_: httpx.Request) -> httpx.Response:
        nonlocal left, at
        left, at = min(2.0, left + 2 * (time.now - at)), time.now
        if left < 1:
            return httpx.Response(429)
        left -= 1
        return httpx.Response(200, json=GOOD)

    asked = model(answer, Clock())
    asked.clock, asked.sleep = lambda: time.now, time.sleep

    async def agent() -> None:
        for seed in range(10):
            await asked.ask(ASKED, seed=seed)

    await time.run(*(agent() for _ in range(8)))
    assert time.now <= 2 * 80 / 2


async def test_a_call_that_waits_heeds_a_longer_limit_that_another_call_meets():
    time, sent = VirtualTime(), list[float]()
    replies = [httpx.Response(429, headers={"retry-after": "1"}), httpx.Response(429, headers={"retry-after": "30"})]

    def answer(_: httpx.Request) -> httpx.Response:
        sent.append(time.now)
        return replies.pop(0) if replies else httpx.Response(200, json=GOOD)

    asked = model(answer, Clock())
    asked.clock, asked.sleep = lambda: time.now, time.sleep
    await time.run(asked.ask(ASKED, seed=0), asked.ask(ASKED, seed=1))
    assert sent == [0.0, 1.0, 31.0, 31.0]


@pytest.mark.parametrize(("text", "seconds"), [
    ("3", 3.0), ("0.5", 0.5), ("-1", 0.0), ("Thu, 01 Jan 1970 00:01:40 GMT", 40.0),
    ("Thu, 01 Jan 1970 00:00:01 GMT", 0.0), ("soon", None), ("", None)])
def test_retry_after_in_seconds_or_as_a_date(text: str, seconds: float | None):
    assert retry_after({"retry-after": text}, now=60.0) == seconds


async def test_a_limit_is_told_with_its_reason_and_once_for_all_calls_that_wait_for_it():
    """While the second request is away, another call meets the same limit."""
    clock, lines = Clock(), list[str]()
    replies = in_turn(httpx.Response(429, json={"error": "no quota"}), httpx.Response(503),
                      httpx.Response(200, json=GOOD))

    def answer(request: httpx.Request) -> httpx.Response:
        if (reply := replies(request)).status_code == 503:
            asked._not_before = clock.now + 1.9
        return reply

    asked = model(answer, clock)
    asked.report = lines.append
    await asked.ask(ASKED, seed=0)
    assert len(lines) == 1
    assert "fails (status 429: " in lines[0]
    assert "no quota" in lines[0]


@pytest.mark.attack
async def test_an_answer_that_drips_is_given_up_after_its_time():
    """Each byte comes in time, so no timeout of a single read ends it."""
    async def drip():
        while True:
            yield b" "
            await asyncio.sleep(0.01)

    asked = model(lambda _: httpx.Response(200, content=drip()), Clock(), call_seconds=0.05, wait_seconds=0.5)
    with pytest.raises(UserError, match=r"no complete answer within prompting.call_seconds=0.05"):
        await asked.ask(ASKED, seed=0)


async def test_an_endpoint_that_never_answered_is_given_up_after_ten_seconds():
    """A mistyped address is no outage."""
    clock = Clock()
    with pytest.raises(UserError, match=r"http://host/v1 cannot be reached \(ConnectError refused\); check --endpoint"):
        await model(in_turn(*[httpx.ConnectError("refused")] * 9), clock).ask(ASKED, seed=0)
    assert clock.slept == [1, 2, 4]


async def test_an_endpoint_that_answered_before_is_waited_for():
    clock = Clock()
    asked = model(in_turn(httpx.Response(200, json=GOOD), *[httpx.ConnectError("refused")] * 5,
                          httpx.Response(200, json=GOOD)), clock)
    await asked.ask(ASKED, seed=0)
    await asked.ask(ASKED, seed=1)
    assert clock.slept == [1, 2, 4, 8, 16]


async def test_more_than_a_hundred_calls_are_under_way_at_once():
    """The others waited for a connection until prompting.call_seconds were over, and called the endpoint broken."""
    assert await answer_beside_held(120, lambda url: endpoint_client(url, None, PromptingSection())) == 200
