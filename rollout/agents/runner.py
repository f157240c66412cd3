"""Plays tickets with the user's agent: an async function `agent(task, llm, env)`, see docs/tasks/own-agent.md."""

from __future__ import annotations

import asyncio
import inspect
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, SupportsFloat, cast

from envservice.client.client import EnvClient, Result
from envservice.text.tool_calls import Tool
from rollout.agents.program import AgentProgram
from rollout.agents.session import AgentSession, EpisodeOver
from rollout.agents.world import AgentWorld
from rollout.episode import Limits, attempt_id, closing, rule_scores_of, score_of
from rollout.prompt_renderer import PromptRenderer
from services.config.tree import AgentSection
from services.errors import AgentFault, UserError, described
from services.process.own_code import import_object
from services.process.signals import signal_of
from services.records import Episode, EpisodeEnd, PlayedTurn, Ticket, choices_digest

if TYPE_CHECKING:
    from rollout.engine.engine import Engine


class Endpoint:
    """The address of an endpoint, and the episodes that it serves now, by their keys."""

    def __init__(self) -> None:
        self.url = ""
        """`http://127.0.0.1:PORT`; clients of OpenAI's API take `/v1` behind it."""
        self.episodes: dict[str, tuple[AgentSession, AgentWorld | None]] = {}

    @contextmanager
    def serving(self, llm: AgentSession, world: AgentWorld | None) -> Iterator[None]:
        """Gives the episode a key, and serves requests with that key until the block ends."""
        llm.base_url, llm.api_key = f"{self.url}/v1", secrets.token_urlsafe(24)
        self.episodes[llm.api_key] = llm, world
        try:
            yield
        finally:
            del self.episodes[llm.api_key]


CANCEL_S = 10.0
"""Seconds that an agent has to end once it is cancelled. After that its episode ends, even if the agent still runs."""
LOOK_S = 1.0
"""Longest time between two checks of whether an agent's time counts."""
Agent = Callable[[str, AgentSession, AgentWorld], Awaitable[None]]
"""(task, llm, env) -> None. Its calls of `llm` become the episode's steps, and its return ends the episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRunner:
    """Plays an agent's episodes. It holds everything that the episodes of one worker share."""

    worker: str
    agent: Agent
    engine: Engine
    env: EnvClient
    env_engine: str
    """Environment engine and version, from /v1/info."""
    text: PromptRenderer
    limits: Limits
    settings: AgentSection
    endpoint: Endpoint
    tools: Sequence[Tool] = ()
    """Tools that the environment offers."""

    async def play(self, ticket: Ticket, attempt: int, *, played: Sequence[PlayedTurn] = (),
                   keep: Callable[[int, PlayedTurn], object] | None = None) -> Episode:
        """Plays one episode of the agent. Raises AgentFault, EnvFault or EngineFault.

        An agent may have a memory that no store holds, so an interrupted episode starts from the beginning: `played`
        and `keep` are not used.
        """
        del played, keep
        started = time.monotonic()
        game = self.env.episode(attempt_id(ticket, attempt), ticket.task)
        llm = AgentSession(
            ticket=ticket, engine=self.engine, text=self.text, prompt_tokens=self.limits.prompt_tokens,
            response_tokens=self.limits.response_tokens, max_calls=self.settings.max_calls,
            reward_scale=self.limits.reward_scale)
        world = AgentWorld(game=game, llm=llm, max_steps=ticket.max_steps, tools=self.tools)
        async with closing(game):
            with self.endpoint.serving(llm, world):
                await self._run(ticket, llm, world)
            if not llm.steps and (llm.over is None or llm.over.end != "context"):
                raise AgentFault(f"the agent ended {ticket.task} without a call of the model")
            return episode_of(llm, world, worker=self.worker, attempt=attempt, seconds=time.monotonic() - started,
                              engine=self.env_engine)

    async def _run(self, ticket: Ticket, llm: AgentSession, world: AgentWorld) -> None:
        """Runs the agent to its end. Raises AgentFault, and the fault of ours that ended the episode.

        After a budget has ended the episode, an error of the agent is no fault. An agent that does not end in time is
        always one: its reward may depend on work that it still waits for.
        """
        running = asyncio.ensure_future(self._called(ticket.task, llm, world))
        running.add_done_callback(lambda task: task.cancelled() or task.exception())  # else asyncio logs it
        still_runs = ""
        try:
            ended = await self._ended_in_time(running, world)
        finally:
            used_up = f"; before that, {llm.over}" if llm.over is not None else ""
            running.cancel()
            await asyncio.wait({running}, timeout=CANCEL_S)
            if not running.done():  # it caught its cancellation: it is left alone, and its calls are refused
                still_runs = ", and still runs although it was cancelled"
                llm.over = EpisodeOver("turns", "the episode has ended")
        if llm.fault is not None:
            raise llm.fault
        if not ended:
            raise AgentFault(f"the agent did not end {ticket.task} within {self.settings.seconds:g} s (agent.seconds)"
                             + still_runs + used_up)
        error = asyncio.CancelledError() if running.cancelled() else running.exception()
        if error is not None:
            llm.over = llm.over or llm.refused
        if error is not None and llm.over is None:
            reason = error if isinstance(error, AgentFault) else described(error)
            raise AgentFault(f"the agent failed on {ticket.task}: {reason}") from error

    async def _ended_in_time(self, running: asyncio.Future[None], world: AgentWorld) -> bool:
        """Waits for the agent, and returns whether it ended within agent.seconds.

        Outages of the environment and pauses of the engine do not count: they have deadlines of their own, which may be
        longer. `away` is the state after the last request, so it means an outage only while a call is being repeated.
        """
        left = self.settings.seconds
        while left > 0:
            since = time.monotonic()
            if (await asyncio.wait({running}, timeout=min(left, LOOK_S)))[0]:
                return True
            if not (self.engine.paused or (world.waits and self.env.away)):
                left -= time.monotonic() - since
        return False

    async def _called(self, task: str, llm: AgentSession, world: AgentWorld) -> None:
        try:
            returned: object = await self.agent(task, llm, world)
        except SystemExit as error:  # of a library made for a command line; asyncio would end the worker
            if signal_of(error) is not None:
                raise
            raise AgentFault(described(error)) from error
        if isinstance(returned, SupportsFloat):  # numbers of numpy and torch as well
            raise AgentFault(f"it returned {returned}, and what an agent returns is not read: give rewards by llm.earn")


def episode_of(llm: AgentSession, world: AgentWorld | None, *, worker: str, attempt: int, seconds: float,
               engine: str) -> Episode:
    """Returns the record of an episode that has ended. `world`: its environment, if it has one. Calls that are answered
    later are not in it."""
    last = None if world is None else world.last
    won = _won(llm, last)
    end: EpisodeEnd = llm.over.end if llm.over is not None else "won" if won else "lost"
    if last is not None:
        end = replace(last, won=won).ended(end)
    return Episode(
        ticket=llm.ticket, steps=list(llm.steps), won=won, end=end, worker=worker, attempt=attempt, seconds=seconds,
        engine=engine, replays=0 if world is None else world.game.replays,
        final_observation="" if last is None else last.observation,
        final_choices="" if last is None else choices_digest(last.admissible_actions),
        final_state="" if last is None else last.state, task_score=None if last is None else score_of(last),
        rule_scores={} if last is None else rule_scores_of(last))


def _won(llm: AgentSession, last: Result | None) -> bool:
    """Returns whether the episode was won. Raises AgentFault if `llm.won` is no boolean: a text such as "no" would
    count as true."""
    if llm.won is None:
        return llm.total_reward > 0 if last is None else last.won
    if llm.won not in (True, False):  # booleans of numpy are equal to them, and a record has Python's
        raise AgentFault(f"the agent set llm.won to {llm.won!r:.60}, and not to True or False")
    return bool(llm.won)


def find_agent(name: str, *, starts: bool = True) -> Agent:
    """Finds the agent `module:attribute`. Raises UserError if there is none, or if it cannot be called as one.

    `starts`: whether it will be started on this machine, which then has to have its program.
    """
    agent: Any = import_object(name, kind="agent", key="agent.name")
    if not callable(agent):
        raise UserError(f"{name} is of type {type(agent).__name__}, not a function",
                        "give agent.name an async function of (task, llm, env)")
    if inspect.isclass(agent):
        raise UserError(f"{name} is a class", "give agent.name an async function, or an object made of it")
    if inspect.isfunction(inspect.unwrap(agent)) and not _returns_awaitable(inspect.unwrap(agent)):
        raise UserError(f"{name} is no async function",
                        f"write `async def {agent.__name__}`, or say in its annotation that it returns an Awaitable")
    try:
        inspect.signature(agent).bind("task", "llm", "env")
    except TypeError as error:
        raise UserError(f"{name} cannot be called with (task, llm, env) ({error})", "give it these three parameters") \
            from None
    except ValueError:
        pass  # compiled code without a signature
    if starts and isinstance(agent, AgentProgram):
        agent.check(name)
    return cast(Agent, agent)


def _returns_awaitable(function: Callable[..., Any]) -> bool:
    """Returns whether the function is async, or annotated to return an awaitable. Any other one may block the event
    loop, which also answers its calls."""
    annotation = str(inspect.signature(function).return_annotation)  # a text, with `from __future__ import annotations`
    return inspect.iscoroutinefunction(function) or any(
        word in annotation for word in ("Awaitable", "Coroutine", "Future"))
