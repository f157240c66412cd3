"""An environment that offers a tool. Its sessions receive a call as JSON text, and the observation is what it returned.

In an agent, `env.tools` has the tools in OpenAI's form, and `await env.call("add", {"n": 5})` calls one; over HTTP it
is `GET /env/tools` and `POST /env/call`. A call is recorded as any action is, and the environment answers one with a
wrong name or wrong arguments. If only your agent has a tool, offer it to the model and carry it out yourself.
"""

from dataclasses import replace

from gagpo.agents import read_call, tool
from gagpo.environments import text_spec


class Counter:
    """A counter that is to become 6."""

    def reset(self, *, seed):
        """Starts the counter at a number that the seed decides."""
        self.now = 1 + seed % 3
        return f"The counter is {self.now}. Make it 6.", {}

    def step(self, action):
        """Carries out a call of the tool."""
        call = read_call(action)
        if call is None or call.name != "add" or not isinstance(call.arguments.get("n"), int):
            return "Call add with a number n.", 0.0, False, False, {}
        self.now += call.arguments["n"]
        return str(self.now), float(self.now == 6), self.now >= 6, False, {"won": self.now == 6}


SPEC = replace(text_spec(Counter, name="counter", max_steps=8),
               tools=lambda: (tool("add", "Adds a number to the counter.", {"n": {"type": "integer"}}),))
