"""The `env` of an agent: the episode's environment, whose rewards go to the call that led to them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from envservice.client.client import EpisodeHandle, Result
from envservice.text.tool_calls import Tool, ToolCall, written_call
from rollout.agents.session import AgentSession, EpisodeOver, ExtremeReward
from services.errors import EnvFault, utf8

FRESH_S = 60.0
"""Seconds for which the first reset may return the outcome of `begin`. A server may lose its session meanwhile, and a
live one cannot be rebuilt."""


@dataclass(slots=True, kw_only=True)
class AgentWorld:
    """One session of the run's environment. Overlapping calls are made one after the other, in their order."""

    game: EpisodeHandle
    llm: AgentSession
    max_steps: int
    tools: Sequence[Tool] = ()
    """Tools that the environment offers, in OpenAI's form."""
    last: Result | None = None
    """The latest outcome. None: the agent has not reset the environment yet."""
    steps: int = 0
    """Turns that were taken, over all resets."""
    _ready: Result | None = field(default=None, init=False)
    """The outcome of `begin`, until the first reset returns it."""
    _began: float = field(default=0.0, init=False)
    """Monotonic time of that outcome."""
    _calling: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    """Two calls at once would be the same turn: the server refuses the second, or answers it as a repetition."""

    @property
    def waits(self) -> bool:
        """Whether a call waits for the environment."""
        return self._calling.locked()

    async def begin(self) -> None:
        """Starts the environment before the agent asks for it. Raises EnvFault, which the agent does not see."""
        self._ready = await self.game.reset()
        self._began = time.monotonic()

    async def reset(self) -> Result:
        """Starts or restarts the environment, and returns its first outcome. A restart gives no turns back.

        Raises EpisodeOver when the episode's turns are used up, and EnvFault.
        """
        async with self._calling:
            if self.steps >= self.max_steps:
                raise self._used_up()
            ready = self._ready if time.monotonic() - self._began < FRESH_S else None
            self._ready = None
            try:
                self.last = ready or await self.game.reset()
            except EnvFault as fault:
                self.llm.fault = fault
                raise
            self.llm.seen = self.last
            return self.last

    async def step(self, action: str) -> Result:
        """Takes an action; its reward goes to the newest call of the model.

        Raises EpisodeOver when a budget of the episode is used up, EnvFault, ValueError before a reset or after the
        end, and TypeError for an action that is no text.
        """
        if not isinstance(cast("object", action), str):
            raise TypeError(f"the action is {action!r:.60}, and env.step takes a text")
        async with self._calling:
            return await self._step(utf8(str.__str__(action)))  # numpy's texts are none of Python's

    async def _step(self, action: str) -> Result:
        before = self.last
        if before is None:
            raise ValueError("the environment has not been reset")
        if before.done:  # an agent carries out all calls of an answer, and one of them ended the game
            self.llm.refused = EpisodeOver(before.ended("turns"), "the episode is over")
            raise ValueError(str(self.llm.refused))
        if self.llm.over is not None:
            raise self.llm.over
        try:
            after = await self.game.step(action)
        except EnvFault as fault:
            self.llm.fault = fault
            raise
        self.steps += 1
        self.llm.acted(action, admissible=before.admits(action), unchanged=after.unchanged)
        if after.reward:
            try:
                self.llm.earn(after.reward)
            except ExtremeReward as error:
                self.llm.fault = EnvFault(str(error))
                raise self.llm.fault from None
        self.last, self.llm.seen = after, after
        if self.steps == self.max_steps and not after.done:  # the next call would have no turn to act in
            self._used_up()
        return after

    def _used_up(self) -> EpisodeOver:
        """Ends the episode, unless another budget has ended it. Returns its end."""
        if self.llm.over is None or self.llm.over.lifts:
            self.llm.over = EpisodeOver("turns", f"{self.max_steps} turns are used up (env.max_steps)")
        return self.llm.over

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Result:
        """Calls a tool of the environment, which is a step. The observation is the tool's result.

        A name that is no tool and wrong arguments are answered by the environment, as any bad action is. Raises as
        `step` does.
        """
        return await self.step(written_call(ToolCall(name, dict(arguments))))
