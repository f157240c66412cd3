"""Episodes outside a run: a client opens one, plays it with the key that it gets, and ends it.

    POST /episodes     with the server's token: {"task": "...", "seed": 7}; answers with the key of the episode
    DELETE /episodes   with the key of the episode; answers with what became of it, and records it

A key that nobody uses for `idle_s` seconds ends its episode without a record. With the server's token itself as its key
(or any key that was no episode's, if the server has no token), a client may ask the model without an episode; such
calls are not recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from pydantic import Field

from envservice.client.client import EnvClient
from envservice.text.tool_calls import Tool
from envservice.wire.schemas import WireModel
from rollout.agents.app import Episode, request_key
from rollout.agents.refusals import Refused
from rollout.agents.runner import episode_of
from rollout.agents.session import AgentSession
from rollout.agents.world import AgentWorld
from services import records
from services.errors import EnvFault, UnknownTask
from services.records import Ticket
from services.seeds import seed_for

OF_AN_EPISODE = "episode-"
"""Begins the key of each episode, so that it is known as one when the episode is over."""


class Opening(WireModel):
    """Asks for an episode. Without a seed, each episode of a task samples in its own way."""

    task: str = Field(default="", max_length=400)
    seed: int | None = Field(default=None, ge=-(1 << 63), lt=1 << 63)


@dataclass(slots=True)
class _Open:
    llm: AgentSession
    world: AgentWorld | None
    began: float
    used: float


@dataclass(slots=True, kw_only=True)
class OpenEpisodes:
    """The episodes that are open now. `session` makes the model's side of one from its ticket."""

    session: Callable[[Ticket], AgentSession]
    env: EnvClient | None
    """None: episodes have no environment, and clients give the rewards."""
    tools: Sequence[Tool]
    engine: str
    """Name and version of the environment's engine, "" without one."""
    temperature: float
    max_steps: int
    token: str | None
    limit: int
    """Most episodes at once."""
    idle_s: float
    record: Callable[[records.Episode], object]
    """Takes each episode that a client ends after at least one call of the model."""
    _open: dict[str, _Open] = field(default_factory=dict[str, _Open])
    _opened: int = 0

    def get(self, key: str) -> Episode | None:
        """The episode of a key. A client without an episode gets one that nobody keeps."""
        episode = self._open.get(key)
        if episode is not None:
            episode.used = time.monotonic()
            return episode.llm, episode.world
        over = key.startswith(OF_AN_EPISODE)
        return (self.session(self._ticket("", None)), None) if self.admits(key) and not over else None

    def admits(self, key: str) -> bool:
        """Whether a key is the server's token."""
        return self.token is None or hmac.compare_digest(key.encode(), self.token.encode())

    async def open(self, asked: Opening) -> str:
        """Opens an episode and returns its key. Raises Refused if there is no room or no such task, and EnvFault."""
        await self.expire()
        if len(self._open) >= self.limit:
            raise Refused(503, f"all {self.limit} episodes are taken (env.max_sessions); end one", "server_busy")
        if self.env is not None and not asked.task:
            raise Refused(400, "name the task to play: `gagpo play --tasks SPLIT` lists them")
        llm, world = self.session(self._ticket(asked.task, asked.seed)), None
        if self.env is not None:
            game = self.env.episode(secrets.token_hex(8), asked.task)
            world = AgentWorld(game=game, llm=llm, max_steps=self.max_steps, tools=self.tools)
        key = llm.api_key = OF_AN_EPISODE + secrets.token_urlsafe(24)
        self._open[key] = _Open(llm, world, time.monotonic(), time.monotonic())
        if world is not None:
            await self._begin(key, world)
        return key

    async def _begin(self, key: str, world: AgentWorld) -> None:
        """Starts the environment of a new episode, which is forgotten if that fails."""
        try:
            await world.begin()
        except BaseException as error:
            self._open.pop(key, None)
            if isinstance(error, UnknownTask):
                raise Refused(404, f"the environment has no task {world.game.task!r}: "
                              "`gagpo play --tasks SPLIT` lists them", "not_found_error") from None
            raise

    async def close(self, key: str) -> records.Episode:
        """Ends an episode, records it, and returns it. Raises Refused for another key, and the fault that ended it.

        If it cannot be written, Refused says so, and the episode stays open.
        """
        ended = self._open.pop(key, None)
        if ended is None:
            raise Refused(401, "no episode has this key: it was ended, or nobody used it for "
                          f"{self.idle_s:g} s (agent.seconds)", "authentication_error")
        await _free(ended)
        if ended.llm.fault is not None:
            raise ended.llm.fault
        episode = episode_of(ended.llm, ended.world, worker="serve-agent", attempt=1,
                             seconds=time.monotonic() - ended.began, engine=self.engine)
        if episode.steps:
            try:
                self.record(episode)
            except OSError as error:
                ended.used, self._open[key] = time.monotonic(), ended  # its client may end it again
                raise Refused(507, f"the episode could not be written ({error.strerror})", "server_error") from None
        return episode

    async def expire(self) -> None:
        """Forgets episodes that nobody has used for `idle_s` seconds."""
        for key in list(self._open):
            one = self._open.get(key)  # while another one was freed, it may have been ended, or used again
            if one is not None and time.monotonic() - one.used > self.idle_s:
                del self._open[key]
                await _free(one)

    def _ticket(self, task: str, seed: int | None) -> Ticket:
        k, self._opened = self._opened, self._opened + 1
        return Ticket(group=f"serve/{task}", k=k, size=1, task=task, kind="eval", temperature=self.temperature,
                      max_steps=self.max_steps, seed=seed_for("serve-agent", k) if seed is None else seed)


async def _free(ended: _Open) -> None:
    if ended.world is not None:
        with contextlib.suppress(EnvFault):
            await ended.world.game.close()


def add_routes(app: FastAPI, episodes: OpenEpisodes) -> None:
    """Adds the routes that open and end episodes, and /healthz."""
    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/episodes", response_model=None)
    async def begin(asked: Opening, request: Request) -> dict[str, Any]:
        if not episodes.admits(request_key(request)):
            raise Refused(401, "this server asks for its token", "authentication_error")
        return {"api_key": await episodes.open(asked), "base_url": f"{request.base_url}v1", "task": asked.task}

    @app.delete("/episodes", response_model=None)
    async def end(request: Request) -> dict[str, Any]:
        episode = await asyncio.shield(episodes.close(request_key(request)))
        return {"task": episode.ticket.task, "won": episode.won, "end": episode.end, "calls": len(episode.steps),
                "reward": episode.total_reward}
