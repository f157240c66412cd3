"""The line that tells who holds the event loop."""

from __future__ import annotations

import asyncio
import time

import pytest
import uvloop

from rollout.agents.blocked_loop import telling_if_blocked


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_blocking_call_is_told_once_with_its_place(counting, ticket, loop):
    """As a client that blocks in an async function: it waits until it gives up, and the loop cannot answer it. Ray runs
    workers on uvloop, which has no Python frames of its own."""
    told, done = [], []

    async def blocks(_task, llm, _env):
        await llm.chat([{"role": "user", "content": "x"}])
        deadline = time.monotonic() + 60
        while not told and time.monotonic() < deadline:
            time.sleep(0.05)  # noqa: ASYNC251 - this is the mistake
        time.sleep(0.3)  # noqa: ASYNC251
        done.append(1)

    async def plays():
        async with counting(["so"], blocks) as (runner, _):
            with telling_if_blocked(told.append, blocked_s=1.0):
                await runner.play(ticket, 1)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(plays())
    assert (len(told), done) == (1, [1])
    assert "the event loop has not run for 1 s, in blocks (" in told[0]
    assert "test_blocked_loop.py:" in told[0]


async def test_an_agent_that_awaits_is_not_told():
    told = []
    with telling_if_blocked(told.append, blocked_s=5.0):
        await asyncio.sleep(1.5)
    assert told == []
