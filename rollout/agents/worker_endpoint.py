"""The endpoint of agents in a run. It runs in the event loop of the rollout worker, which holds the episodes.

A blocking client in an async function of an agent waits for an answer that cannot come, because this loop would give
it. The worker is then killed for its silence after `supervision.silence_seconds`, again and again. So a thread watches
the loop, and logs the agent's line that blocks it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from starlette.types import ASGIApp

from envservice.registry import find_spec
from rollout.agents.app import create_app
from rollout.agents.runner import AgentRunner, Endpoint, find_agent
from services.chat import check_chat
from services.config.tree import AgentSection
from services.http.server import STOP_S, Server, bind, server_config
from services.process.addresses import host_port
from services.process.forks import forks_apart
from services.process.threads import watched
from services.telemetry.logs import get_logger

HOST = "127.0.0.1"
AGENT_THREADS = 4
"""Threads that each episode may hold at once: one in which its agent blocks, and others for tools and long prompts."""
OWN_THREADS = 32
"""Additional threads for the worker's own calls."""
BLOCKED_S = 10.0
"""Seconds after which a blocked loop is logged. Claims are lost after 30."""
PAUSE_S, LOOK_S = 1.0, 0.1
log = get_logger("agents")


@asynccontextmanager
async def agent_runner(settings: AgentSection, shared: dict[str, Any], model: Path, *, env: str,
                       slots: int) -> AsyncIterator[AgentRunner]:
    """Yields the runner of a worker whose config names an agent, and serves the agent's endpoint meanwhile.

    `shared`: the arguments that EpisodeRunner takes. `env`: name of the environment. `slots`: episodes that the worker
    plays at once. Raises UserError if the model's tokenizer has no chat template, and EnvFault if a server that lists
    the environment's tools is unavailable: the worker is then started again.
    """
    assert settings.name is not None
    check_chat(shared["text"].chat, model)
    _make_room_for(slots)
    tools = await asyncio.to_thread(find_spec(env).tools)  # may ask a server
    async with endpoint() as served:
        with logging_blocks(log.error):
            yield AgentRunner(**shared, settings=settings, agent=find_agent(settings.name), endpoint=served,
                              tools=tools)


def _make_room_for(slots: int) -> None:
    """Gives this event loop enough threads for agents that block in all `slots`, and for the worker's own calls.

    All share the loop's executor, as `asyncio.to_thread` uses no other. The default one has few threads. If agents held
    them all, no new weights would come, and no long prompt that an agent waits for would be tokenized. A thread is
    started only when none is idle. The executor lives as long as the loop, because the worker's shutdown needs it too.
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
    """Serves this machine until the block ends. Clients in this process and its children reach it without a proxy."""
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


@contextmanager
def logging_blocks(report: Callable[[str], object], *, blocked_s: float = BLOCKED_S) -> Iterator[None]:
    """Watches this thread's event loop from another thread until the block ends. `report` takes one line each time
    that the loop has been blocked for `blocked_s` seconds."""
    loop, thread = asyncio.get_running_loop(), threading.get_ident()
    depth: int | None = None

    def measure() -> None:
        nonlocal depth
        depth = len(traceback.extract_stack()) - 1

    def watch(ended: threading.Event) -> None:
        while not ended.wait(PAUSE_S):
            ran, since, reported = threading.Event(), time.monotonic(), False
            loop.call_soon_threadsafe(ran.set)
            while not ran.wait(LOOK_S) and not ended.is_set():
                if not reported and time.monotonic() - since > blocked_s:
                    reported = True
                    newest = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage]
                    report(_blocked_line(newest, depth, blocked_s))

    loop.call_soon(measure)
    with watched(watch, name="blocked loop"):
        yield


def _blocked_line(frame: FrameType | None, depth: int | None, blocked_s: float) -> str:
    """Returns the line to log, which names the outermost line of the agent's own code.

    `frame`: the newest of the loop's thread. `depth`: number of frames below those that the loop runs, since uvloop has
    no frame of its own that would show where they begin. None: the loop has not run yet.
    """
    frames = [] if frame is None or depth is None else traceback.extract_stack(frame)[depth:]
    own = [one for one in frames if not one.filename.endswith("rollout/agents/runner.py")]
    where = f", in {own[0].name} ({own[0].filename}:{own[0].lineno})" if own else ""
    return (f"the event loop has not run for {blocked_s:g} s{where}: it answers the agents' calls, too, so a client "
            "that blocks waits for ever; await an async client, or call it by asyncio.to_thread")
