"""Prompt correction of GCD: the policy sums up its own mistakes, and training prompts carry the summary.

    judge task ▸ critiques of bad actions ▸ the policy sums up CRITIQUES of them ▸ the store ▸ new training tickets

Source: "Rethinking Reward Miscalibration of GRPO in Agentic RL", section 4.2: critiques that the model makes itself are
collected, common errors are synthesized, and they are put into the prompt of subsequent tasks as instructions. The
paper has no prompt, no schedule and no rule for what is summed up, so these are ours (docs/papers.md). The summary
travels in tickets, so all members of a group have the same prompts, also if another worker plays an episode again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollout.limits import Limits
from rollout.prompt_renderer import PromptRenderer
from services.records import JudgedAction, Step, Ticket
from services.seeds import seed_for

if TYPE_CHECKING:
    from rollout.engine.engine import Engine

CRITIQUES = 16
"""Number of critiques that are summed up together."""
Keep = Callable[[str], Awaitable[None]]
"""Stores the instructions that new training tickets carry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrector:
    """Collects the critiques of one worker's episodes, and asks the policy for a summary of every CRITIQUES of them."""

    engine: Engine
    text: PromptRenderer
    limits: Limits
    """The bounds of episodes. A summary has at most as many tokens as an answer."""
    keep: Keep
    _critiques: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]], init=False)
    """Actions with the thought that judged them bad, the oldest first."""

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
