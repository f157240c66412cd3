"""An environment with tools: reach a number by adding and doubling. Each useful call is rewarded."""

from __future__ import annotations

from dataclasses import replace

from envservice.adapters.gymnasium import text_spec
from envservice.text.tool_calls import read_call, tool

TOOLS = (tool("add", "Adds a number to the counter.", {"n": {"type": "integer"}}),
         tool("double", "Doubles the counter.", {}))


class Counter:
    """Starts at 1 and wants 6. Beyond 99 it gives up, which is a limit and no end of the game."""

    def reset(self, *, seed: int):
        self._now = 1
        return "The counter is 1. Make it 6.", {}

    def step(self, action: str):
        call = read_call(action)
        if call is None:
            return "Call a tool.", 0.0, False, False, {}
        if call.name == "double" and not call.arguments:
            self._now *= 2
        elif call.name == "add" and isinstance(call.arguments.get("n"), int):
            self._now += call.arguments["n"]
        else:
            return f"There is no {call.name} with {sorted(call.arguments)}.", 0.0, False, False, {}
        return f"{self._now}", 0.25 + (self._now == 6), 6 <= self._now <= 99, self._now > 99, {"won": self._now == 6}


def counter_spec(*, replayable: bool = True):
    return replace(text_spec(Counter, name="counter", max_steps=8, replayable=replayable), tools=lambda: TOOLS)


SPEC = counter_spec()
