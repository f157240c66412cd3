"""Plays the trials of one task with a model that is asked. Each finished trial becomes a record."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import msgspec

from envservice.base import Environment, Turn, outcome_of
from envservice.text.response_format import without_thought
from rollout.episode import rule_scores_of, score_of
from rollout.prompting.model import AskedModel, ContextFull, ModelAnswer
from rollout.prompting.policies import PromptingPolicy, Trial, reflection_on
from services.chat import Message
from services.config.sections import PromptingSection
from services.errors import DeadlineExceeded, EnvFault, Unavailable, UserError, described
from services.outages import SERVER_PAUSE_S
from services.records import EpisodeEnd
from services.seeds import seed_for

T = TypeVar("T")


class PlayedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One turn in text."""

    observation: str
    answer: str
    action: str
    valid: bool
    admissible: bool


class PlayedTrial(msgspec.Struct, frozen=True, kw_only=True):
    """A finished trial, as the file of an evaluation keeps it."""

    task: str
    trial: int
    """Counts from 1."""
    won: bool
    end: EpisodeEnd
    score: float | None
    """The environment's own score at the end; None if it has none."""
    rule_scores: dict[str, float] = {}
    """As in services.records.Episode."""
    steps: list[PlayedStep]
    reflection: str | None
    """Reflexion: the plan that the model wrote after the lost trial."""
    calls: int
    prompt_tokens: int
    answer_tokens: int
    uncounted: int
    """Calls whose tokens the endpoint did not count."""
    seconds: float


@dataclass(slots=True)
class Cost:
    """Calls of the model and their tokens."""

    calls: int = 0
    prompt_tokens: int = 0
    answer_tokens: int = 0
    uncounted: int = 0

    def add(self, answer: ModelAnswer) -> None:
        """Counts one call."""
        self.calls += 1
        self.prompt_tokens += answer.prompt_tokens or 0
        self.answer_tokens += answer.answer_tokens or 0
        self.uncounted += answer.prompt_tokens is None or answer.answer_tokens is None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlayer:
    """Plays tasks. `environment` is used in one thread alone, since not every engine allows more."""

    environment: Environment
    thread: Executor
    policy: PromptingPolicy
    model: AskedModel
    settings: PromptingSection
    max_steps: int
    seed: int
    _alone: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    """Held while a call uses the thread, so that its deadline begins with the call, not with the wait for it."""

    async def play(self, task: str, before: Sequence[PlayedTrial], keep: Callable[[PlayedTrial], object]) -> None:
        """Plays the remaining trials of a task. `before`: its trials so far. `keep` takes each finished trial.

        Raises ContextFull if the task's first prompt is too long, EnvFault, EngineFault, UserError and
        DeadlineExceeded.
        """
        done = list(before)
        while self.open_trial(done):
            played = await self._trial(task, len(done) + 1, [each.reflection for each in done if each.reflection])
            keep(played)
            done.append(played)

    def open_trial(self, done: Sequence[PlayedTrial]) -> bool:
        """Whether a task with these trials has another one to play."""
        if not done:
            return True
        return self.policy.reflects and not done[-1].won and len(done) < self.settings.trials

    async def _trial(self, task: str, number: int, reflections: list[str]) -> PlayedTrial:
        started, cost = time.monotonic(), Cost()
        memory = reflections[-self.settings.memory :]
        session = await self._in_thread(lambda: self.environment.open(task))
        first = await self._in_thread(lambda: outcome_of(session.reset(), "reset"))
        trial, steps = Trial(first=first, now=first, turns=[], answers=[]), list[PlayedStep]()
        end: EpisodeEnd = "turns"
        while not trial.now.done and len(steps) < self.max_steps:
            try:
                answer = await self._ask(self.policy.messages(trial, memory), cost, task, number, len(steps))
            except ContextFull:
                if number == 1 and not steps:
                    raise
                end = "context"
                break
            steps.append(self._take(trial, answer))
            trial.now = await self._in_thread(lambda: outcome_of(session.step(steps[-1].action), "step"))
        won = trial.now.won
        reflection = None
        if self.policy.reflects and not won and number < self.settings.trials:
            reflection = await self._reflect(trial, memory, cost, task, number)
        return PlayedTrial(
            task=task, trial=number, won=won, end=trial.now.ended(end),
            score=score_of(trial.now), rule_scores=rule_scores_of(trial.now), steps=steps, reflection=reflection,
            calls=cost.calls, prompt_tokens=cost.prompt_tokens, answer_tokens=cost.answer_tokens,
            uncounted=cost.uncounted, seconds=time.monotonic() - started)

    def _take(self, trial: Trial, answer: str) -> PlayedStep:
        parsed, now = self.policy.parse(answer), trial.now
        admissible = now.admits(parsed.action)
        trial.answers.append(answer)
        trial.turns.append(Turn(observation=now.observation, action=parsed.action, admissible=admissible,
                                kept=parsed.kept))
        return PlayedStep(observation=now.observation, answer=answer, action=parsed.action, valid=parsed.valid,
                          admissible=admissible)

    async def _reflect(self, trial: Trial, memory: Sequence[str], cost: Cost, task: str, number: int) -> str | None:
        try:
            return without_thought(await self._ask(reflection_on(trial, memory), cost, task, number, -1))
        except ContextFull:
            return None  # the next trial has to do without

    async def _ask(self, messages: Sequence[Message], cost: Cost, task: str, number: int, turn: int) -> str:
        answer = await self.model.ask(messages, seed=seed_for(self.seed, task, number, turn))
        cost.add(answer)
        return answer.text

    async def _in_thread(self, call: Callable[[], T]) -> T:
        until = time.monotonic() + self.settings.wait_seconds
        while True:
            try:
                async with self._alone:
                    running = asyncio.get_running_loop().run_in_executor(self.thread, partial(_as_fault, call))
                    return await asyncio.wait_for(running, self.settings.step_seconds)
            except Unavailable:  # nothing has happened in the game
                if time.monotonic() >= until:
                    raise
                await asyncio.sleep(SERVER_PAUSE_S)
            except TimeoutError:
                raise DeadlineExceeded(f"a step of the environment took longer than {self.settings.step_seconds:g} s "
                                       "(prompting.step_seconds)") from None


def _as_fault(call: Callable[[], T]) -> T:
    """Returns the result of a call of the environment. Its code may be a user's, so any other error is an EnvFault."""
    try:
        return call()
    except (EnvFault, UserError):
        raise
    except Exception as error:
        raise EnvFault(described(error)) from error
