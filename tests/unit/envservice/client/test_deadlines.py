"""A call that no server answers in time names the config key that bounds it."""

import asyncio

import pytest

from envservice.client.client import EnvClient
from envservice.client.request_batching import Unreachable
from services.errors import EnvFault


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
