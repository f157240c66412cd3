"""Any MCP server as an environment: an episode is a session of its own, and its actions are calls of tools.

    begin(episode)     returns the task's text; it may first fill the episode's folder and call tools
    an action          a call as JSON text, whose result is the observation; any other text is the episode's `answer`
    score(episode)     called after each action; a number is this step's reward and ends the episode, None continues it

A server is a command, which is started for each episode in an empty folder, or the URL of a Streamable HTTP server. All
sessions of a process share one event loop in a thread of its own, since a client of MCP must be closed in the task that
opened it.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import TYPE_CHECKING, Any

from envservice.adapters.gymnasium import text_spec
from envservice.adapters.openenv import read_tool_result
from envservice.spec import LONGEST, EnvironmentSpec
from envservice.text.tool_calls import Tool, read_call
from services.errors import EnvFault, Unavailable, UserError, described, first_of
from services.process.own_code import as_user_error
from services.process.packages import naming_extras

if TYPE_CHECKING:
    from mcp import ClientSession

Server = str | Sequence[str]
"""A URL, or a command with its arguments."""
PROCESS_BYTES = 100 << 20
"""Memory of a server that a command starts, for a small one in Python with the package `mcp`."""
INVALID_PARAMS = -32602
"""The error of JSON-RPC by which a server refuses a call's name or arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpCall:
    """A call of a tool, with its result."""

    name: str
    arguments: Mapping[str, Any]
    text: str
    """The result as the model reads it."""
    failed: bool
    """Whether the server refused it, or the tool says that it failed."""
    data: Mapping[str, Any] | None = None
    """The structured content; None without."""


class McpConnection:
    """One session of a server, open once this is made. If it cannot be opened, raises EnvFault for a command and
    Unavailable for a URL."""

    def __init__(self, server: Server, folder: Path, seconds: float) -> None:
        with naming_extras():
            import mcp as _  # noqa: F401 - it is opened in another thread
        self._server, self._folder, self._seconds = server, folder, seconds
        self._ended = asyncio.Event()
        self._client: ClientSession | None = None
        opened: Future[list[Tool]] = Future()
        asyncio.run_coroutine_threadsafe(self._hold(opened), _loop())
        try:
            self.tools = opened.result()
        except Exception as error:
            kind = Unavailable if isinstance(server, str) else EnvFault
            raise kind(f"the MCP server {self._name} does not start a session: {_reason(error)}") from error

    @property
    def _name(self) -> str:
        return self._server if isinstance(self._server, str) else " ".join(self._server)

    async def _hold(self, opened: Future[list[Tool]]) -> None:
        """Opens the session, waits for `close`, and closes the session in the same task."""
        try:
            async with AsyncExitStack() as held:
                async with asyncio.timeout(self._seconds):
                    self._client = await self._open(held)
                    opened.set_result(await _listed(self._client))
                await self._ended.wait()
        except BaseException as error:
            if opened.done():  # errors of a server that is being closed do not matter
                return
            opened.set_exception(error)

    async def _open(self, held: AsyncExitStack) -> ClientSession:
        from mcp import ClientSession, StdioServerParameters, stdio_client
        from mcp.client.streamable_http import streamable_http_client

        if isinstance(self._server, str):
            transport = streamable_http_client(self._server)
        else:
            command, *arguments = self._server
            transport = stdio_client(StdioServerParameters(command=command, args=arguments, cwd=self._folder))
        reading, writing, *_ = await held.enter_async_context(transport)
        client = await held.enter_async_context(ClientSession(reading, writing))
        await client.initialize()
        return client

    def call(self, name: str, arguments: Mapping[str, Any]) -> McpCall:
        """Calls a tool. If the server refuses the name or arguments, the result has `failed`. Raises EnvFault if the
        server breaks, does not answer in time, or answers with anything but text."""
        try:
            result = asyncio.run_coroutine_threadsafe(self._answer(name, dict(arguments)), _loop()).result()
        except Exception as error:
            refused: Any = getattr(error, "error", None)  # of McpError, which version 2 of the package calls MCPError
            if getattr(refused, "code", None) != INVALID_PARAMS:
                raise EnvFault(f"the MCP server {self._name} failed in {name}: {_reason(error)}") from error
            return McpCall(name=name, arguments=arguments, text=f"Error: {refused.message}", failed=True)
        try:
            text = read_tool_result({"tool_name": name, "result": result})
        except TypeError as error:
            raise EnvFault(f"the MCP server {self._name} answered {name} with {error}") from error
        return McpCall(name=name, arguments=arguments, text=text, failed=bool(result.get("isError")),
                       data=result.get("structuredContent"))

    async def _answer(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        assert self._client is not None
        async with asyncio.timeout(self._seconds):
            return (await self._client.call_tool(name, arguments)).model_dump(by_alias=True, mode="json")

    def close(self) -> None:
        """Asks the session to end, and does not wait for it, since Python may call this in any thread."""
        _loop().call_soon_threadsafe(self._ended.set)


@dataclass(slots=True, kw_only=True)
class McpEpisode:
    """One episode, as `begin` and `score` see it."""

    number: int
    """Number of the task."""
    folder: Path
    """Working directory of the server that a command starts, empty when `begin` gets it. It is deleted at the end."""
    connect: Callable[[], McpConnection]
    """Returns the server's session, and opens it at the first call."""
    calls: list[McpCall] = field(default_factory=list["McpCall"])
    """The calls of the model so far."""
    answer: str = ""
    """The last action, if it is no call."""

    def call(self, name: str, /, **arguments: Any) -> McpCall:
        """Calls a tool for `begin` or `score`. The call is not added to `calls`. Raises EnvFault as a session does."""
        return self.connect().call(name, arguments)


class McpGame:
    """One session of an MCP server, as a game of gymnasium.py."""

    def __init__(self, server: Server, begin: Callable[[McpEpisode], str], score: Callable[[McpEpisode], float | None],
                 hidden: Collection[str], seconds: float) -> None:
        self._server, self._begin, self._score, self._hidden = server, begin, score, hidden
        self._seconds = seconds
        self._session: McpConnection | None = None
        self._folder: TemporaryDirectory[str] | None = None

    def reset(self, *, seed: int) -> tuple[str, dict[str, Any]]:
        """Begins the task with this number in a fresh session."""
        self.close()
        self._folder = TemporaryDirectory(prefix="gagpo-mcp-", ignore_cleanup_errors=True)
        self._episode = McpEpisode(number=seed, folder=Path(self._folder.name), connect=self._connect)
        text = self._begin(self._episode)
        self._connect()
        return text, {}

    def _connect(self) -> McpConnection:
        if self._session is None:
            self._session = McpConnection(self._server, self._episode.folder, self._seconds)
        return self._session

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Calls a tool, or takes the answer of the episode, and asks `score`."""
        episode, call = self._episode, read_call(action)
        if call is None:
            episode.answer = action
        else:
            episode.answer = ""
            episode.calls.append(self._called(call.name, call.arguments))
        reward = self._score(episode)
        text = episode.calls[-1].text if call is not None else "" if reward is not None else "Call a tool."
        return text, 0.0 if reward is None else reward, reward is not None, False, {}

    def _called(self, name: str, arguments: Mapping[str, Any]) -> McpCall:
        names = [tool["function"]["name"] for tool in self.tools()]
        if name not in names:
            text = f"Error: there is no tool {name}. The tools are {', '.join(names)}."
            return McpCall(name=name, arguments=arguments, text=text, failed=True)
        return self._connect().call(name, arguments)

    def tools(self) -> list[Tool]:
        """Returns the tools that the model may call."""
        return [tool for tool in self._connect().tools if tool["function"]["name"] not in self._hidden]

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
        if self._folder is not None:
            self._folder.cleanup()


def mcp_spec(  # noqa: PLR0913 - servers differ in all of it
    server: Server, *, name: str, begin: Callable[[McpEpisode], str], score: Callable[[McpEpisode], float | None],
    hidden: Collection[str] = (), max_steps: int = LONGEST, sizes: tuple[int, int, int] = (1000, 100, 300),
    replayable: bool = False, seconds: float = 60.0,
) -> EnvironmentSpec:
    """Makes the EnvironmentSpec of an MCP server, for `env.name` to point to.

    `server`: a command with its arguments, which each episode starts in a folder of its own, or a URL. The module's
    header describes `begin` and `score`. `hidden`: names of tools that only these two may call. `seconds`: the deadline
    of each answer. The rest is as in `text_spec`. For larger servers, replace the spec's `session_bytes`. Raises
    UserError for a server that is neither, and as `text_spec` does.
    """
    if not (re.match("https?://", server) if isinstance(server, str) else server):
        raise UserError(f"the MCP server of {name} is {server!r:.60}",
                        'give a URL, or a list such as ["mcp-server-time", "--local-timezone", "UTC"]')

    def game() -> McpGame:
        return McpGame(server, begin, score, hidden, seconds)

    def first_tools() -> list[Tool]:
        playing = game()
        try:
            playing.reset(seed=0)
            return playing.tools()
        finally:
            playing.close()

    def reachable(_: object) -> None:
        with as_user_error(f"the MCP server of {name} cannot be played",
                           "correct `begin`, or install or start the server"):
            if not first_tools():
                raise UserError(f"the MCP server of {name} offers no tools", "name fewer tools in `hidden`")

    shown = server if isinstance(server, str) else " ".join(server)
    spec = text_spec(game, name=name, max_steps=max_steps, sizes=sizes, replayable=replayable, threaded=True)
    return replace(spec, reachable=reachable, tools=first_tools,
                   session_bytes=0 if isinstance(server, str) else PROCESS_BYTES,
                   describe=lambda _: f"MCP server {shown}, numbers as tasks")


async def _listed(client: ClientSession) -> list[Tool]:
    """Returns all pages of the server's tools."""
    from mcp.types import PaginatedRequestParams

    tools: list[Tool] = []
    cursor: str | None = None
    while True:
        answer = await client.list_tools(params=PaginatedRequestParams(cursor=cursor))
        page = answer.model_dump(by_alias=True, mode="json")
        tools += [{"type": "function", "function": {
            "name": tool["name"], "description": tool.get("description") or "", "parameters": tool["inputSchema"]}}
            for tool in page["tools"]]
        if not (cursor := page.get("nextCursor")):
            return tools


def _reason(error: BaseException) -> str:
    return "no answer in time" if isinstance(first_of(error), TimeoutError) else described(error)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Returns the event loop of all sessions, and starts its thread."""
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, name="mcp", daemon=True).start()
    return loop


os.register_at_fork(after_in_child=_loop.cache_clear)  # a fork inherits the loop without its thread
