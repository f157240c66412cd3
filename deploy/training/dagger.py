"""Lessons of the cold start by DAgger: the model plays training games, and the scripted player corrects every turn."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

from services.config.tree import Config
from services.seeds import seed_for

if TYPE_CHECKING:
    from learner.cold_start.course import Lesson
    from learner.cold_start.sft_data import Example, TokenRow
    from learner.cold_start.student import Student
    from services.chat import ChatFormat


@dataclass
class Lessons:
    """The rounds of sft.dagger_rounds, in order. `played` has a line about each round that is over."""

    config: Config
    student: Student
    encode: Callable[[Sequence[Example]], list[TokenRow]]
    chat: ChatFormat | None
    """The format of prompts that are messages. None: prompts are raw text."""
    _: KW_ONLY
    seed: int
    report: Callable[[str], object]
    played: list[dict[str, int]] = field(default_factory=list[dict[str, int]])

    def all(self) -> list[Lesson]:
        """Returns a lesson for each round."""
        return [self._round] * self.config.sft.dagger_rounds

    def _round(self) -> list[TokenRow]:
        from envservice.registry import find_spec, find_teacher, make_template
        from learner.cold_start.sft_data import Example
        from rollout.demonstrations import corrections

        env = self.config.env
        environment = find_spec(env.name).open(env)
        seed = seed_for(self.seed, "dagger", len(self.played))
        games = environment.tasks(environment.training_splits()[0])
        tasks = random.Random(seed).sample(games, min(self.config.sft.dagger_episodes, len(games)))
        turn = iter(range(env.max_steps))
        pairs, won = corrections(
            environment, tasks, teacher=find_teacher(env), template=make_template(env), seed=seed,
            sft=self.config.sft, max_steps=env.max_steps,
            policy=lambda prompts: self.student.answers(self._read(prompts), seed=seed_for(seed, next(turn))))
        rows = self.encode([Example(prompt=prompt, response=response) for prompt, response in pairs])
        self.played.append({"episodes": len(tasks), "won": won, "rows": len(rows)})
        self.report(f"DAgger round {len(self.played)} of {self.config.sft.dagger_rounds}: the model won "
                    f"{won / len(tasks):.0%} of {len(tasks)} training games, {len(rows)} corrected steps")
        return rows

    def _read(self, prompts: Sequence[str]) -> list[str]:
        """Returns the prompts as the model reads them."""
        return [prompt if self.chat is None else self.chat.prompt(prompt) for prompt in prompts]
