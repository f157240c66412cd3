"""The judge task of GCD: after a training episode the policy is asked whether some of its actions were good.

Source: "Rethinking Reward Miscalibration of GRPO in Agentic RL", section 4.1. The labels are the paper's rule: an
action is bad if the observation before it occurs again before a later action, and good if it is the last one of a won
episode. Other actions have no label. How many are asked about is our choice; learner/rows/judge.py makes both labels
weigh the same.

Prompt correction (section 4.2): the policy sums up its own mistakes, and training prompts carry the summary.

    judge task ▸ critiques of bad actions ▸ the policy sums up CRITIQUES of them ▸ the store ▸ new training tickets

The paper has no prompt, no schedule and no rule for what is summed up, so these are ours (docs/papers.md). The summary
travels in tickets, so all members of a group have the same prompts, also if another worker plays an episode again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from envservice.base import Outcome, Turn
from rollout.prompt_renderer import PromptRenderer
from services.config.sections import JudgeSection
from services.records import JudgedAction, Step, Ticket, verdict_of
from services.seeds import seed_for

if TYPE_CHECKING:
    from rollout.engine.engine import Engine
    from rollout.episode import Limits

CRITIQUES = 16
"""Number of critiques in one summary."""
Keep = Callable[[str], Awaitable[None]]
"""Stores the instructions that new training tickets carry."""


def labels(steps: Sequence[Step], *, won: bool) -> dict[int, bool]:
    """Returns turn -> whether its action was good, for the turns that have a label."""
    last = {step.observation: turn for turn, step in enumerate(steps)}
    good = {turn: False for turn, step in enumerate(steps) if last[step.observation] > turn}
    return good | ({len(steps) - 1: True} if won and steps else {})


def chosen(labelled: Mapping[int, bool], *, questions: int, seed: int) -> list[int]:
    """Returns the turns to ask about: all good ones, and at most `questions` bad ones, drawn by the seed."""
    bad = [turn for turn, good in labelled.items() if not good]
    drawn = random.Random(seed).sample(bad, min(questions, len(bad)))
    return sorted([*drawn, *(turn for turn, good in labelled.items() if good)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrector:
    """Collects the critiques of one worker's episodes. From CRITIQUES on, the policy sums up the newest."""

    engine: Engine
    text: PromptRenderer
    limits: Limits
    """The bounds of episodes. A summary has at most as many tokens as an answer."""
    keep: Keep
    _critiques: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]], init=False)
    """(action, the thought that judged it bad), the oldest first."""

    async def add(self, ticket: Ticket, steps: Sequence[Step], judged: Sequence[JudgedAction]) -> None:
        """Adds the critiques of one episode: the answers that rightly say "bad". Raises EngineFault and StoreFault."""
        self._critiques.extend(
            (steps[question.turn].action, self.text.split_answer(answer.response_ids)[0])
            for question in judged if not question.good for answer in question.answers if answer.reward)
        if len(self._critiques) >= CRITIQUES:
            taken = self._critiques[-CRITIQUES:]
            self._critiques.clear()
            await self._sum_up(ticket, taken)

    async def _sum_up(self, ticket: Ticket, critiques: Sequence[tuple[str, str]]) -> None:
        prompt = self.text.mistakes_question(critiques)
        while len(prompt) > self.limits.prompt_tokens and len(critiques) > 1:
            critiques = critiques[1:]
            prompt = self.text.mistakes_question(critiques)
        if len(prompt) > self.limits.prompt_tokens:
            return
        sample = await self.engine.sample(
            prompt, temperature=ticket.temperature, seed=seed_for(ticket.seed, "correction"),
            max_tokens=self.limits.response_tokens, stop_token_ids=self.text.stop_ids,
            stop_texts=self.text.stop_texts, request_id=f"{ticket.id}/correction")
        if summary := self.text.split_answer(sample.ids)[1]:
            await self.keep(summary)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Asks the policy about the actions of finished episodes."""

    engine: Engine
    text: PromptRenderer
    settings: JudgeSection
    limits: Limits
    """The bounds of episodes. A question that is longer than a prompt may be is not asked."""
    corrector: Corrector | None = None
    """Takes the critiques. None: prompts are not corrected."""

    async def ask(self, ticket: Ticket, steps: Sequence[Step], seen: Sequence[Outcome], turns: Sequence[Turn],
                  *, won: bool) -> list[JudgedAction]:
        """Returns the questions about a training episode with their answers; [] for an evaluation.

        `seen`: the outcome before each turn. `turns`: the record of each turn. Raises EngineFault, and StoreFault if
        prompts are corrected.
        """
        if ticket.kind != "train":
            return []
        good = labels(steps, won=won)
        asked: list[JudgedAction] = []
        for turn in chosen(good, questions=self.settings.questions, seed=seed_for(ticket.seed, "judge")):
            prompt = self.text.question(seen[0], turns[:turn], seen[turn], steps[turn].action, ticket.correction)
            if len(prompt) <= self.limits.prompt_tokens:
                answers = await asyncio.gather(*(
                    self._answer(ticket, turn, prompt, number=number, good=good[turn])
                    for number in range(self.settings.answers)))
                asked.append(JudgedAction(turn=turn, good=good[turn], answers=answers))
        if self.corrector is not None:
            await self.corrector.add(ticket, steps, asked)
        return asked

    async def _answer(self, ticket: Ticket, turn: int, prompt: list[int], *, number: int, good: bool) -> Step:
        sample = await self.engine.sample(
            prompt, temperature=ticket.temperature, seed=seed_for(ticket.seed, "judge", turn, number),
            max_tokens=self.limits.response_tokens, stop_token_ids=self.text.stop_ids,
            stop_texts=self.text.stop_texts, request_id=f"{ticket.id}/judge/{turn}/{number}")
        verdict = self.text.verdict(sample.ids)
        return Step(observation="", prompt_ids=np.array(prompt, dtype=np.int32), response_ids=sample.ids,
                    logprobs=sample.logprobs, spans=sample.spans, action=verdict, valid=bool(verdict), admissible=True,
                    reward=float(verdict == verdict_of(good)), cut=sample.finished == "length")
