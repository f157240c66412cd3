"""The endpoint of agents outside a run: one policy, its environment if wanted, and episodes that clients open.

    POST /episodes     with the server's token: {"task": "...", "seed": 7}; answers with the key of the episode
    DELETE /episodes   with the key of the episode; records the episode, and answers with its result

An episode whose key is not used for `idle_s` seconds is dropped without a record. A client may also ask the model
without an episode. Its key is then the server's token, or if the server has none, any key that was no episode's. Such
calls are not recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from pydantic import Field

from envservice.client.client import EnvClient
from envservice.registry import find_spec, open_environment
from envservice.server.app import Settings
from envservice.server.app import create_app as environment_app
from envservice.server.capacity import session_limit, sessions_bytes
from envservice.text.tool_calls import CALL, Tool, invalid_reason
from envservice.wire import WireModel
from rollout.agents.app import OpenEpisode, create_app, request_key
from rollout.agents.refusals import Refused
from rollout.agents.runner import episode_of
from rollout.agents.session import AgentSession
from rollout.agents.worker_endpoint import listening
from rollout.agents.world import AgentWorld
from rollout.engine.engine import Engine, Sample
from rollout.prompt_renderer import PromptRenderer, load_text
from services.chat import check_chat
from services.config.secrets import env_token
from services.config.tree import Config, EnvSection
from services.errors import EngineFault, EnvFault, UnknownTask
from services.http.server import bind, serving_in_thread
from services.process.forks import forks_apart
from services.records import CUT, Episode, Ticket, Version
from services.seeds import seed_for
from services.telemetry.metrics_file import append_row

LOOK_S = 5.0
"""Seconds between two searches for episodes that nobody uses."""
KEY_PREFIX = "episode-"
"""Beginning of each episode's key. It tells the key of an episode that is over from other keys."""


class Opening(WireModel):
    """Asks for an episode. Without a seed, each episode gets a seed of its own."""

    task: str = Field(default="", max_length=400)
    seed: int | None = Field(default=None, ge=-(1 << 63), lt=1 << 63)


@dataclass(slots=True)
class _Entry:
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
    record: Callable[[Episode], object]
    """Takes each episode that a client ends after at least one call of the model."""
    _open: dict[str, _Entry] = field(default_factory=dict[str, _Entry])
    _opened: int = 0

    def get(self, key: str) -> OpenEpisode | None:
        """Returns the episode of a key. A client without an episode gets one that is not kept."""
        episode = self._open.get(key)
        if episode is not None:
            episode.used = time.monotonic()
            return episode.llm, episode.world
        over = key.startswith(KEY_PREFIX)
        return (self.session(self._ticket("", None)), None) if self.admits(key) and not over else None

    def admits(self, key: str) -> bool:
        """Returns whether a key is the server's token."""
        return self.token is None or hmac.compare_digest(key.encode(), self.token.encode())

    async def open(self, asked: Opening) -> str:
        """Opens an episode and returns its key. Raises EnvFault, and Refused without room or without such a task."""
        await self.expire()
        if len(self._open) >= self.limit:
            raise Refused(503, f"all {self.limit} episodes are taken (env.max_sessions); end one", "server_busy")
        if self.env is not None and not asked.task:
            raise Refused(400, "name the task to play: `gagpo play --tasks SPLIT` lists them")
        llm, world = self.session(self._ticket(asked.task, asked.seed)), None
        if self.env is not None:
            game = self.env.episode(secrets.token_hex(8), asked.task)
            world = AgentWorld(game=game, llm=llm, max_steps=self.max_steps, tools=self.tools)
        key = llm.api_key = KEY_PREFIX + secrets.token_urlsafe(24)
        self._open[key] = _Entry(llm, world, time.monotonic(), time.monotonic())
        if world is not None:
            await self._begin(key, world)
        return key

    async def _begin(self, key: str, world: AgentWorld) -> None:
        """Starts the environment of a new episode, which is dropped if that fails."""
        try:
            await world.begin()
        except BaseException as error:
            self._open.pop(key, None)
            if isinstance(error, UnknownTask):
                raise Refused(404, f"the environment has no task {world.game.task!r}: "
                              "`gagpo play --tasks SPLIT` lists them", "not_found_error") from None
            raise

    async def close(self, key: str) -> Episode:
        """Ends an episode, records it, and returns it. Raises Refused for another key, and the fault that ended it.

        An episode that cannot be written, or has no environment and no reward yet, is refused and stays open.
        """
        ended = self._open.pop(key, None)
        if ended is None:
            raise Refused(401, "no episode has this key: it was ended, or nobody used it for "
                          f"{self.idle_s:g} s (agent.seconds)", "authentication_error")
        await _close_world(ended)
        if ended.llm.fault is not None:
            raise ended.llm.fault
        if ended.world is None and ended.llm.steps and not ended.llm.rewarded:
            ended.used, self._open[key] = time.monotonic(), ended
            raise Refused(409, "the episode has no reward: POST /reward first, also if it is 0")
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
        """Drops episodes that have not been used for `idle_s` seconds."""
        for key in list(self._open):
            one = self._open.get(key)  # while another episode was closed, this one may have been ended or used
            if one is not None and time.monotonic() - one.used > self.idle_s:
                del self._open[key]
                await _close_world(one)

    def _ticket(self, task: str, seed: int | None) -> Ticket:
        k, self._opened = self._opened, self._opened + 1
        return Ticket(group=f"serve/{task}", k=k, size=1, task=task, kind="eval", temperature=self.temperature,
                      max_steps=self.max_steps, seed=seed_for("serve-agent", k) if seed is None else seed)


async def _close_world(entry: _Entry) -> None:
    if entry.world is not None:
        with contextlib.suppress(EnvFault):
            await entry.world.game.close()


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPolicy:
    """A policy, how it is played, and who may ask it."""

    config: Config
    model: Path
    host: str
    port: int
    token: str | None
    """The bearer token of the server. None: it needs none, and only this machine reaches it."""
    with_env: bool
    """Whether episodes have the environment of the config."""
    out: Path | None
    """JSON lines, one for each episode that was ended. None: none are written."""


async def serve_agents(served: ServedPolicy, ready: Callable[[str], object]) -> None:
    """Serves until SIGTERM or SIGINT, and calls `ready` with the URL. Raises UserError and EngineFault.

    Either signal raises SystemExit or KeyboardInterrupt as in other commands, before `ready` too: it ends the loading.
    """
    stop, loading = asyncio.Event(), _Loading()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, loading.handle, number, stop)
    try:
        await _serve(served, stop, lambda url: (loading.end(), ready(url)))
    except asyncio.CancelledError:
        if loading.signal is None:
            raise
    if loading.signal is not None:
        raise KeyboardInterrupt if loading.signal == signal.SIGINT else SystemExit(128 + loading.signal)


class _Loading:
    """The time until the endpoint is ready. In it a signal cancels the task that created this object."""

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self.signal: int | None = None
        """The signal that ended the loading or the serving."""

    def end(self) -> None:
        self._task = None

    def handle(self, number: int, stop: asyncio.Event) -> None:
        self.signal = number
        if self._task is not None:
            self._task.cancel()
        stop.set()


async def _serve(served: ServedPolicy, stop: asyncio.Event, ready: Callable[[str], object]) -> None:
    config = served.config
    with contextlib.closing(bind(served.host, served.port)) as listener:
        text = load_text(str(served.model), config.env, config.model)
        assert text.chat is not None
        check_chat(text.chat, served.model)
        engine = Engine(served.model, Version(incarnation=0, step=0), config=config.rollout, dtype=config.model.dtype,
                        seed=config.seed)
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(engine.close)
            await engine.start()
            watched = _Watched(engine, stop)
            async with agents_url(served, text, watched, listener) as url:
                ready(url)
                await engine.while_alive(stop.wait())
    if watched.fault is not None:
        raise watched.fault


@contextlib.asynccontextmanager
async def agents_url(served: ServedPolicy, text: PromptRenderer, engine: Any,
                     listener: socket.socket) -> AsyncIterator[str]:
    """Serves on the listener until the block ends, and yields the URL. `engine` has been started."""
    async with _environment(served) as env:
        episodes = await _episodes(served, text, engine, env)
        app = create_app(episodes)
        add_routes(app, episodes)
        expiring = asyncio.create_task(_expire(episodes))
        try:
            async with listening(app, listener, local_only=served.token is None) as url:
                yield url
        finally:
            expiring.cancel()


async def _expire(episodes: OpenEpisodes) -> None:
    while True:
        await asyncio.sleep(LOOK_S)
        await episodes.expire()


class _Watched:
    """The engine, whose first fault ends the server. So does the end of its process, even between calls."""

    def __init__(self, engine: Engine, stop: asyncio.Event) -> None:
        self._engine, self._stop = engine, stop
        self.fault: EngineFault | None = None

    async def sample(self, prompt_ids: Any, **named: Any) -> Sample:
        try:
            return await self._engine.sample(prompt_ids, **named)
        except EngineFault as fault:
            self.fault = fault
            self._stop.set()
            raise


async def _episodes(served: ServedPolicy, text: PromptRenderer, engine: Any, env: EnvClient | None) -> OpenEpisodes:
    config, rollout = served.config, served.config.rollout
    info = None if env is None else await env.info()
    tools = () if env is None else await asyncio.to_thread(find_spec(config.env.name).tools)  # may ask a server

    def session(ticket: Ticket) -> AgentSession:
        return AgentSession(ticket=ticket, engine=engine, text=text, prompt_tokens=rollout.max_prompt_tokens,
                            response_tokens=rollout.max_response_tokens, max_calls=config.agent.max_calls)

    return OpenEpisodes(
        session=session, env=env, tools=tools, engine="" if info is None else f"{info.engine} {info.version}",
        temperature=config.eval.temperature, max_steps=config.env.max_steps, token=served.token,
        limit=config.env.max_sessions, idle_s=config.agent.seconds,
        record=lambda episode: served.out and append_episode(served.out, episode))


@contextlib.asynccontextmanager
async def _environment(served: ServedPolicy) -> AsyncIterator[EnvClient | None]:
    """Yields a client of the environment: of the servers in env.urls, or of one that runs in a thread."""
    if not served.with_env:
        yield None
        return
    env, lease_s = served.config.env, served.config.agent.seconds
    # Our own server gets a secret token, because other users of this machine can reach it too.
    token = env_token(env) if env.urls else secrets.token_urlsafe(32)
    with _server(env, token, lease_s=lease_s) as urls:
        async with EnvClient(urls, token, timeout_s=env.call_seconds) as client:
            yield client


@contextlib.contextmanager
def _server(env: EnvSection, token: str | None, *, lease_s: float) -> Iterator[list[str]]:
    if env.urls:
        yield list(env.urls)
        return
    spec = find_spec(env.name)
    made = open_environment(env)
    settings = Settings(max_sessions=session_limit(env, spec.session_bytes), record_bytes=sessions_bytes(env),
                        threaded=spec.threaded(env), live_lease_s=lease_s, token=token)
    with made if isinstance(made, contextlib.AbstractContextManager) else contextlib.nullcontext():
        listener = bind("127.0.0.1", 0)
        url, app = f"http://127.0.0.1:{listener.getsockname()[1]}", environment_app(made, settings)
        with serving_in_thread(app, listener, local_only=True, name="environment"), forks_apart(listener):
            yield [url]


def append_episode(out: Path, episode: Episode) -> None:
    """Appends an episode as one JSON line, which `gagpo credit --from agents` reads with the others of its task."""
    steps = [{"state": step.observation, "action": step.action, "reward": step.reward, "invalid": not step.valid,
              # Answers of agents are invalid for two reasons alone.
              **({} if step.valid else {"reason": invalid_reason(CALL, cut=step.cut)})} for step in episode.steps]
    line: dict[str, Any] = {"task": episode.ticket.task, "won": episode.won, "end": episode.end,
                            "reward": episode.total_reward, "time": time.time(), "steps": steps}
    if episode.end in CUT and episode.final_observation:
        line["final_state"] = episode.final_observation
    append_row(out, line)
