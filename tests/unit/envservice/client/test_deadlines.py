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
