"""A counter with tools on OpenEnv's own server, by its MCP. `tools.py PORT`."""

import sys

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server import CallToolAction, CallToolObservation, Observation, State, create_fastapi_app
from openenv.core.env_server.mcp_environment import MCPEnvironment


class Counting(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        mcp = FastMCP("counting")

        @mcp.tool
        def add(n: int) -> int:
            """Adds a number to the counter."""
            self._now += n
            return self._now

        super().__init__(mcp)
        self._now = 0

    def reset(self, seed=None, episode_id=None, **_):
        self._now = seed
        return Observation(metadata={"told": f"The counter is {seed}."})

    def _step_impl(self, action, **_):
        return Observation(metadata={"told": "no such action"})

    @property
    def state(self):
        return State()


app = create_fastapi_app(Counting, CallToolAction, CallToolObservation, max_concurrent_envs=8)
uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
