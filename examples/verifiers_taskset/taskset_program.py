"""Plays one row of a taskset of verifiers 0.4 with the policy.

Its reward goes to the last call; credit says what the calls before it earned.

verifiers asks without a deadline, so `agent.seconds` ends an episode that hangs. By default it does not play a failed
rollout again, and it should not: gagpo does.
"""

import asyncio
import os
import sys

import httpx
import verifiers.v1 as vf

ENV = vf.load_environment(vf.resolve_env_config({
    "taskset": {"id": sys.argv[1]}, "agent": {"harness": {"id": "same-python"}, "runtime": {"type": "subprocess"}}}))
URL, KEY = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]


async def play(number):
    """Plays the row with this number, and returns verifiers' record of it."""
    task = next(iter(ENV.taskset.include(idx=[str(number)])))
    client = vf.EvalClientConfig(base_url=URL, api_key_var="OPENAI_API_KEY")
    async with ENV.serving():
        return await ENV.run_episode(task, vf.ModelContext(model="policy", client=client, sampling=vf.SamplingConfig()))


episode = asyncio.run(play(int(os.environ["GAGPO_TASK"].rpartition("/")[2])))
if not episode.ok:  # a fault of the episode, which gagpo plays again; its reward would be 0
    raise SystemExit(f"{episode.errors} {[trace.errors for trace in episode.traces]}")
if len(episode.traces) != 1:
    raise SystemExit(f"{sys.argv[1]} has {len(episode.traces)} agents, and one policy is trained")
reward = episode.traces[0].reward
httpx.post(f"{URL.removesuffix('/v1')}/reward", headers={"authorization": f"Bearer {KEY}"}, timeout=60,
           json={"reward": reward, "won": reward >= 1}).raise_for_status()
