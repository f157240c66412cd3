"""The endpoint of agents in a run. It runs in the event loop of the rollout worker, which holds the episodes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp

from envservice.registry import find_spec
from rollout.agents.app import create_app
from rollout.agents.blocked_loop import telling_if_blocked
from rollout.agents.endpoint import Endpoint
from rollout.agents.runner import AgentRunner, find_agent
from services.chat import check_chat
from services.config.tree import Config
from services.http.server import STOP_S, Server, bind, server_config
from services.process.addresses import host_port
from services.process.forks import forks_apart
from services.telemetry.logs import get_logger

HOST = "127.0.0.1"
AGENT_THREADS = 4
"""Threads that each episode may hold at once: one in which its agent blocks, and others for tools and long prompts."""
OWN_THREADS = 32
"""Threads beside them for the worker's own calls."""
log = get_logger("agents")


@asynccontextmanager
async def agent_runner(config: Config, shared: dict[str, Any], model: Path) -> AsyncIterator[AgentRunner]:
    """Yields the runner of a worker whose config names an agent, and serves the agent's endpoint meanwhile.

    `shared`: the arguments that EpisodeRunner takes. Raises UserError if the model's tokenizer has no chat template,
    and EnvFault if a server that lists the environment's tools is away: the worker is then started again.
    """
    assert config.agent.name is not None
    check_chat(shared["text"].chat, model)
    _make_room_for(config.rollout.slots)
    tools = await asyncio.to_thread(find_spec(config.env.name).tools)  # may ask a server
    async with endpoint() as served:
        with telling_if_blocked(log.error):
            yield AgentRunner(**shared, settings=config.agent, agent=find_agent(config.agent.name), endpoint=served,
                              tools=tools)


def _make_room_for(slots: int) -> None:
    """Gives this event loop threads for so many agents that block, and for the worker's own calls.

    All share the loop's executor, as `asyncio.to_thread` knows no other. The executor of before has few threads: if
    agents held them all, no new weights would come, and no long prompt that an agent waits for would be tokenized. A
    thread is made when none is idle. The executor lives as long as the loop: the worker's own end needs it, too.
    """
    asyncio.get_running_loop().set_default_executor(
        ThreadPoolExecutor(OWN_THREADS + AGENT_THREADS * slots, thread_name_prefix="calls"))


class _Server(Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to the process that holds this server."""
        yield


@asynccontextmanager
async def endpoint() -> AsyncIterator[Endpoint]:
    """Serves this machine until the block ends. From now on clients of this process ask it without a proxy."""
    served = Endpoint()
    listed = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if HOST not in listed.split(","):
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(filter(None, [listed, HOST]))
    async with listening(create_app(served.episodes), bind(HOST, 0), local_only=True) as url:
        served.url = url
        yield served


@asynccontextmanager
async def listening(app: ASGIApp, listener: socket.socket, *, local_only: bool) -> AsyncIterator[str]:
    """Serves an application in this event loop until the block ends, and yields its URL. Closes the listener."""
    server = _Server(server_config(app, local_only=local_only, timeout_graceful_shutdown=STOP_S))
    url = f"http://{host_port(*listener.getsockname()[:2])}"
    with contextlib.closing(listener), forks_apart(listener):
        running = asyncio.create_task(server.serve(sockets=[listener]), name="agents' endpoint")
        try:
            yield url
        finally:
            server.should_exit = True
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(running, 3 * STOP_S)
