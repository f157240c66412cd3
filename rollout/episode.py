"""The episode loop: prompt, sample, act, until the game is over.

Each turn has its own prompt, which is built again from the history that the template shows, and becomes one row of
training data. If the policy ended the episode (won, lost, out of turns, context full), it is kept with its true reward.
A fault of our system (EnvFault, EngineFault) is raised to the caller and never becomes a reward.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from envservice.base import RULE, Outcome, ParsedAction, Turn
from envservice.client.client import EnvClient, EpisodeHandle, Result
from rollout.judge import Judge
from rollout.prompt_renderer import PromptRenderer
from services.config.env import EnvSection
from services.errors import EnvFault, ReplayDiverged
from services.records import Episode, EpisodeEnd, PlayedTurn, Step, Ticket, choices_digest
from services.rewards import LARGEST_REWARD, within_reward_limit
from services.seeds import seed_for

if TYPE_CHECKING:
    from rollout.engine.engine import Engine, Sample

Keep = Callable[[int, PlayedTurn], object]
"""Takes the index of a turn and the turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of an episode, in addition to its ticket's max_steps."""

    prompt_tokens: int
    response_tokens: int
    reward_scale: float
    """Factor on the environment's reward in training."""

    def scaled(self, reward: float) -> float:
        """Returns an environment's reward as training counts it. Raises EnvFault beyond LARGEST_REWARD."""
        product = reward * self.reward_scale
        if not within_reward_limit(product):
            raise EnvFault(f"the reward {reward:g} times env.reward_scale, {self.reward_scale:g}, is {product:g}, and "
                           f"at most {LARGEST_REWARD:g} in size is taken")
        return product


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRunner:
    """Plays episodes. Holds everything that the episodes of one worker share."""

    worker: str
    engine: Engine
    env: EnvClient
    env_engine: str
    """Environment engine and version, from /v1/info."""
    text: PromptRenderer
    limits: Limits
    replayable: bool = True
    """Whether sessions can be rebuilt. If not, turns of an earlier attempt cannot be repeated."""
    judge: Judge | None = None
    """Asks about finished training episodes. None: there is no judge task."""

    async def play(self, ticket: Ticket, attempt: int, *, played: Sequence[PlayedTurn] = (),
                   keep: Keep = lambda *_: None) -> Episode:
        """Plays one episode from reset to its end. Raises EnvFault or EngineFault, and StoreFault if the judge corrects
        prompts.

        `played`: turns that an earlier attempt finished. They are repeated without the sampler, and must lead to the
        same game, else ReplayDiverged is raised. `keep` gets each turn that is finished here.
        """
        if not self.replayable:
            played, keep = (), lambda *_: None
        started = time.monotonic()
        game = self.env.episode(attempt_id(ticket, attempt), ticket.task)
        steps: list[Step] = []  # rows of training data
        turns: list[Turn] = []  # the history that later prompts show
        seen: list[Outcome] = []  # the outcome before each turn, for the judge
        end: EpisodeEnd = "turns"
        async with closing(game):
            first = now = await game.reset()
            while not now.done and (turn := len(steps)) < ticket.max_steps:
                prompt = self._prompt(ticket, first, turns, now)
                if len(prompt) > self.limits.prompt_tokens:
                    end = "context"
                    break
                earlier = played[turn] if turn < len(played) else None
                sample = earlier or await self._sample(prompt, ticket, turn=turn)
                answer = self.text.parse(sample.ids)
                after = await game.step(answer.action)
                if earlier is None:
                    keep(turn, PlayedTurn(ids=sample.ids, logprobs=sample.logprobs, spans=sample.spans,
                                          action=answer.action, digest=after.digest))
                elif (answer.action, after.digest) != (earlier.action, earlier.digest):
                    raise ReplayDiverged(f"turn {turn} of another worker leads to another game here ({ticket.task})")
                steps.append(self._row(prompt, sample, answer, now, after))
                turns.append(Turn(observation=now.observation, action=answer.action, admissible=steps[-1].admissible,
                                  kept=answer.kept))
                seen.append(now)
                now = after
        return Episode(
            ticket=ticket, steps=steps, won=now.won, end=now.ended(end), worker=self.worker, attempt=attempt,
            seconds=time.monotonic() - started, engine=self.env_engine, replays=game.replays, task_score=score_of(now),
            rule_scores=rule_scores_of(now), final_observation=now.observation, final_state=now.state,
            final_choices=choices_digest(now.admissible_actions),
            judged=await self.judge.ask(ticket, steps, seen, turns, won=now.won) if self.judge else [])

    def _prompt(self, ticket: Ticket, first: Outcome, turns: Sequence[Turn], now: Outcome) -> list[int]:
        """Returns the prompt of a turn, without the ticket's correction if it has no room for that."""
        prompt = self.text.prompt(first, turns, now, ticket.correction)
        if ticket.correction and len(prompt) > self.limits.prompt_tokens:
            return self.text.prompt(first, turns, now)
        return prompt

    async def _sample(self, prompt: list[int], ticket: Ticket, *, turn: int) -> Sample:
        return await self.engine.sample(
            prompt, temperature=ticket.temperature, seed=seed_for(ticket.seed, turn),
            max_tokens=self.limits.response_tokens, stop_token_ids=self.text.stop_ids,
            stop_texts=self.text.stop_texts, request_id=f"{ticket.id}/{turn}",
        )  # fmt: skip

    def _row(self, prompt: list[int], sample: Sample | PlayedTurn, answer: ParsedAction, now: Result,
             after: Result) -> Step:
        return Step(
            observation=now.observation, prompt_ids=np.array(prompt, dtype=np.int32), response_ids=sample.ids,
            logprobs=sample.logprobs, spans=sample.spans, action=answer.action, valid=answer.valid,
            admissible=now.admits(answer.action), reward=self.limits.scaled(after.reward),
            choices=choices_digest(now.admissible_actions), state=now.state, unchanged=after.unchanged,
            tag=answer.tag, cut=not self.text.ends(sample.ids),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedRunner:
    """Plays episodes of several environments. Each has a runner with its own prompt, tags and reward scale."""

    settings: EnvSection
    """The list of environments."""
    runners: Mapping[str, EpisodeRunner]
    """Maps the `name` of an entry to its runner. All ask the same servers."""

    @property
    def env(self) -> EnvClient:
        """Returns the client of the servers."""
        return next(iter(self.runners.values())).env

    async def play(self, ticket: Ticket, attempt: int, *, played: Sequence[PlayedTurn] = (),
                   keep: Keep = lambda *_: None) -> Episode:
        """Plays one episode as EpisodeRunner does."""
        runner = self.runners[self.settings.entry_of(ticket.task).name]
        return await runner.play(ticket, attempt, played=played, keep=keep)


def attempt_id(ticket: Ticket, attempt: int) -> str:
    """Returns an id for this attempt at an episode, by which servers know it. Each call returns another one."""
    return f"{ticket.id}~{attempt}~{uuid.uuid4().hex[:8]}"


def score_of(last: Outcome) -> float | None:
    """Returns the environment's own score at the end, or None if it has none.

    Raises EnvFault for a score that is no number within LARGEST_REWARD.
    """
    return None if last.info.get("task_score") is None else _score(last, "task_score")


def rule_scores_of(last: Outcome) -> dict[str, float]:
    """Returns the score at the end by each rule of the environment. Raises EnvFault as score_of does."""
    return {key.removeprefix(RULE): _score(last, key) for key in last.info if key.startswith(RULE)}


def _score(last: Outcome, key: str) -> float:
    score = last.info[key]
    try:
        if within_reward_limit(number := float(score)):
            return number
    except (ValueError, OverflowError):
        pass
    raise EnvFault(f"info.{key} is {score!r:.60}, and should be a number of at most {LARGEST_REWARD:g} in size")


@contextlib.asynccontextmanager
async def closing(game: EpisodeHandle):
    """Closes the session in every case. A server that is unavailable or full drops it when its lease ends."""
    try:
        yield
    finally:
        with contextlib.suppress(EnvFault):
            await game.close()
