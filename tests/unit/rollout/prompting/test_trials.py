"""The trials of one task, in a game that nobody wins."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from counter import SPEC

from envservice.alfworld.prompts import AlfworldFullTemplate
from rollout.prompting.model import ModelAnswer
from rollout.prompting.policies import make_policy
from rollout.prompting.trials import PlayedTrial, TaskPlayer
from services.config.env import EnvSection
from services.config.sections import PromptingSection
from services.errors import DeadlineExceeded


class Planner:
    """Thinks, answers with `plan 1`, `plan 2`, ... and keeps the start of each conversation."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def ask(self, messages, *, seed: int) -> ModelAnswer:
        self.asked.append(messages[0]["content"])
        return ModelAnswer(text=f"<think>\nhm\n</think>\n\nplan {len(self.asked)}", prompt_tokens=1, answer_tokens=None)


async def test_a_trial_reads_the_newest_reflections_alone():
    """Each of four trials has one turn. All but the last end with a reflection, which is every second answer."""
    model, kept = Planner(), list[PlayedTrial]()
    with ThreadPoolExecutor(1) as thread:
        player = TaskPlayer(
            environment=SPEC.open(EnvSection(name="counter:SPEC")), thread=thread, model=model, max_steps=1, seed=0,
            policy=make_policy("reflexion", AlfworldFullTemplate(2)), settings=PromptingSection(trials=4, memory=2))
        await player.play("counter/train/00000000", [], kept.append)
    assert [(played.trial, played.won, played.calls, played.uncounted) for played in kept] == [
        (1, False, 2, 2), (2, False, 2, 2), (3, False, 2, 2), (4, False, 1, 1)]
    plans = ["plan 2", "plan 4", "plan 6"]
    assert [played.reflection for played in kept] == [*plans, None]
    starts = model.asked[::2]
    assert [[plan for plan in plans if f"- {plan}" in start] for start in starts] == [
        [], plans[:1], plans[:2], plans[1:]]


class Slow:
    """An environment whose games take their time to open."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def open(self, task: str) -> Any:
        time.sleep(self.seconds)
        return SPEC.open(EnvSection(name="counter:SPEC")).open(task)


@pytest.mark.parametrize(("seconds", "ends"), [(0.1, False), (0.6, True)])
async def test_a_step_is_late_by_its_own_time_not_by_that_of_the_episodes_before_it(seconds: float, ends: bool):
    """One thread plays all episodes, so that the eighth of eight waits for seven steps."""
    with ThreadPoolExecutor(1) as thread:
        player = TaskPlayer(
            environment=cast("Any", Slow(seconds)), thread=thread, model=Planner(), max_steps=1, seed=0,
            policy=make_policy("direct", AlfworldFullTemplate(2)), settings=PromptingSection(step_seconds=0.5))
        done = await asyncio.gather(*(player.play(f"counter/train/{k:08}", [], lambda _: None) for k in range(8)),
                                    return_exceptions=True)
    assert [isinstance(one, DeadlineExceeded) for one in done] == [ends] * 8
