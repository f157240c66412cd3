"""Plays one row of an environment of verifiers (before 0.4) with the policy.

Its reward goes to the last call; credit says what the calls before it earned.

    python environment_program.py my-environment [ARGUMENTS]

ARGUMENTS are those of its `load_environment`, as JSON.
"""

import asyncio
import json
import os
import sys

import httpx
import verifiers as vf
from verifiers.types import ClientConfig

NAME, ARGUMENTS = sys.argv[1], json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
URL, KEY = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]

env = vf.load_environment(NAME, **ARGUMENTS)
if env.requires_group_rollouts:
    raise SystemExit(f"{NAME} scores several rollouts together, and an episode here is scored alone")
if env.message_type != "chat":
    raise SystemExit(f"{NAME} asks for {env.message_type}, and the policy answers chat messages")
rows, number = env.get_dataset(), int(os.environ["GAGPO_TASK"].rpartition("/")[2])
if number >= len(rows):
    raise SystemExit(f"{NAME} has {len(rows)} rows, and no row {number}: correct `sizes` in its spec")
client = ClientConfig(api_base_url=URL, api_key_var="OPENAI_API_KEY", max_retries=0)  # gagpo plays a fault again
played = asyncio.run(env.run_rollout(rows[number], client, "policy", {}))
if played["error"]:  # a fault, whose reward would be 0
    raise SystemExit(f"{NAME}, row {number}: {played['error']}")
httpx.post(f"{URL.removesuffix('/v1')}/reward", headers={"authorization": f"Bearer {KEY}"}, timeout=60,
           json={"reward": played["reward"], "won": played["reward"] >= env.pass_threshold}).raise_for_status()
