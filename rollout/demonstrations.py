"""Demonstrations for the cold start: a scripted player's episodes as prompt and response texts.

Some steps are noise: they are executed, so that later steps show recoveries, but not trained on (DART, Laskey et al.
2017, arXiv 1703.09327). The environment's Teacher has the player and the noise.

For the judge task (rollout/judge.py) a share of the steps also names an action to judge: the player's own is good, and
noise in its place is bad. The paper imitates judgements of another model, which are not published.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from envservice.base import Outcome, PromptTemplate, RewritesAnswers, Session, Turn
from envservice.spec import Demonstrator, Teacher
from services.config.tree import SftSection
from services.seeds import seed_for


class Opens(Protocol):
    """The part of an Environment that demonstrations need."""

    def open(self, task: str) -> Session: ...


@dataclass(frozen=True, slots=True)
class DemoStep:
    """One step as text."""

    prompt_text: str
    response_text: str
    """The player's answer."""
    action: str
    """The action that was executed: the player's, or noise."""
    train: bool
    """Whether the step is trained on. False for noise."""
    judged: tuple[str, bool] | None = None
    """An action in the state of the prompt, and whether it is good. None: the step shows no judgement."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One episode. Lost episodes are not trained on."""

    task: str
    steps: list[DemoStep]
    won: bool


def written(player: Demonstrator, template: PromptTemplate, first: Outcome, turns: Sequence[Turn],
            now: Outcome) -> str:
    """Returns the player's answer to the latest outcome, in the template's form."""
    answer = player.act(now)
    return template.rewrite(answer, first, turns) if isinstance(template, RewritesAnswers) else answer


def demonstrate(
    environment: Opens,
    task: str,
    *,
    teacher: Teacher,
    template: PromptTemplate,
    seed: int,
    sft: SftSection,
    max_steps: int,
    disguised: bool = False,
) -> Demonstration:
    """Plays one episode of `task`. Returns each step with the prompt that the policy would read, and its answer.

    The same seed gives the same episode. `disguised`: use other words for things, if the teacher has them. Raises the
    environment's errors.
    """
    rng, judge = (random.Random(seed_for(what, seed, task)) for what in ("demonstration", "judgement"))
    session = environment.open(task)
    if disguised and teacher.disguise is not None:
        session = teacher.disguise(session, seed_for("numbers", seed, task))
    first = now = session.reset()
    player = teacher.player(first, rng, sft)
    turns: list[Turn] = []
    steps: list[DemoStep] = []
    while not now.done and len(turns) < max_steps:
        answer = written(player, template, first, turns, now)
        parsed = template.parse(answer)
        action, kept = parsed.action, parsed.kept
        judged = _judged(teacher, action, first, now, judge) if judge.random() < sft.judgements else None
        noise = rng.random() < sft.noise
        if noise:
            action, kept = teacher.disturb(action, first, now, rng), ""
        steps.append(DemoStep(template.render(first, turns, now), answer, action, train=not noise, judged=judged))
        turns.append(Turn(observation=now.observation, action=action, admissible=now.admits(action), kept=kept))
        now = session.step(action)
    return Demonstration(task, steps, now.won)


def _judged(teacher: Teacher, action: str, first: Outcome, now: Outcome, rng: random.Random) -> tuple[str, bool]:
    """Returns, by a toss of a coin, the player's action or noise in its place, and whether it is the player's."""
    about = rng.choice((action, teacher.disturb(action, first, now, rng)))
    return about, about == action
