"""The episode loop: prompt, sample, act, until the game is over.

Each turn is a prompt of its own, rebuilt from the history that the template shows, and becomes one row of training
data. An end that the policy brought about (won, lost, turns used up, context full) is an episode with its true reward.
A fault of the machinery is raised to the caller and never becomes a reward: EnvFault, EngineFault.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from envservice.base import ParsedAction, Turn
from envservice.client.client import EnvClient, EpisodeHandle, Result
from rollout.prompt_renderer import PromptRenderer
from services.errors import EnvFault
from services.records import Episode, EpisodeEnd, Step, Ticket
from services.seeds import seed_for
from services.telemetry.tracing import span

if TYPE_CHECKING:
    from rollout.engine import Engine, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bounds an episode beside its ticket's max_steps."""

    prompt_tokens: int
    response_tokens: int
    reward_scale: float
    """Environment reward times this is what training sees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRunner:
    """Everything that the episodes of one worker share."""

    worker: str
    engine: Engine
    env: EnvClient
    env_engine: str
    """Environment engine and version, from /v1/info."""
    text: PromptRenderer
    limits: Limits

    async def play(self, ticket: Ticket, attempt: int) -> Episode:
        """One episode from reset to its end. Raises EnvFault or EngineFault."""
        started = time.monotonic()
        game = self.env.episode(f"{ticket.id}~{attempt}~{uuid.uuid4().hex[:8]}", ticket.task)
        async with _closing(game):
            steps: list[Step] = []
            turns: list[Turn] = []
            first = now = await game.reset()
            end: EpisodeEnd = "turns"
            while not now.done and len(steps) < ticket.max_steps:
                prompt = self.text.prompt(first, turns, now)
                if len(prompt) > self.limits.prompt_tokens:
                    end = "context"
                    break
                sample = await self._sample(prompt, ticket, turn=len(steps))
                answer = self.text.parse(sample.ids)
                after = await game.step(answer.action)
                steps.append(self._row(prompt, sample, answer, now, after))
                turns.append(Turn(observation=now.observation, action=answer.action, admissible=steps[-1].admissible))
                now = after
        return Episode(
            ticket=ticket, steps=steps, won=now.won, end=("won" if now.won else "lost") if now.done else end,
            worker=self.worker, attempt=attempt, seconds=time.monotonic() - started, engine=self.env_engine,
            replays=game.replays, final_observation=now.observation, task_score=_score(now),
        )  # fmt: skip

    async def _sample(self, prompt: list[int], ticket: Ticket, *, turn: int) -> Sample:
        with span("turn", turn=turn, prompt_tokens=len(prompt)) as told:
            sample = await self.engine.sample(
                prompt, temperature=ticket.temperature, seed=seed_for(ticket.seed, turn),
                max_tokens=self.limits.response_tokens, stop_token_ids=self.text.stop_ids,
                request_id=f"{ticket.id}/{turn}",
            )  # fmt: skip
            if told:
                told.set(response_tokens=len(sample.ids), finished=sample.finished,
                         versions=[part.version.short for part in sample.spans])
        return sample

    def _row(self, prompt: list[int], sample: Sample, answer: ParsedAction, now: Result, after: Result) -> Step:
        return Step(
            observation=now.observation, prompt_ids=np.array(prompt, dtype=np.int32), response_ids=sample.ids,
            logprobs=sample.logprobs, spans=sample.spans, action=answer.action, valid=answer.valid,
            admissible=now.admits(answer.action), reward=after.reward * self.limits.reward_scale,
        )  # fmt: skip


def _score(last: Result) -> float | None:
    score = last.info.get("task_score")
    return None if score is None else float(score)


@contextlib.asynccontextmanager
async def _closing(game: EpisodeHandle):
    """Frees the session, whatever happened; a server that cannot do so now does it when the lease ends."""
    try:
        yield
    finally:
        with contextlib.suppress(EnvFault):
            await game.close()
