"""Plays an OpenEnv server with OpenEnv's own client: `play.py URL TASK ACTION...`. Prints the results as JSON."""

import json
import sys

from openenv import GenericEnvClient

url, task, *actions = sys.argv[1:]
with GenericEnvClient(base_url=url, connect_timeout_s=60.0).sync() as client:
    results = [client.reset(task=task), *(client.step({"action": action}) for action in actions)]
    state = client.state()
print(json.dumps({"state": state, "results": [
    {"observation": one.observation, "reward": one.reward, "done": one.done} for one in results]}))
