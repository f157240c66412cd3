"""Demonstrations for the cold start: a scripted player's episodes as prompt and response texts.

Some steps are noise: they are executed, so that later steps show recoveries, but not trained on (DART, Laskey et al.
2017, arXiv 1703.09327). The environment's Teacher has the player and the noise.

Corrections are the other way round: the policy acts, and in every state that it comes to the scripted player says what
it would have answered (DAgger, Ross et al. 2011, arXiv 1011.0686).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from envservice.base import Outcome, PromptTemplate, RewritesAnswers, Session, Turn
from envservice.spec import Demonstrator, Teacher
from services.config.tree import SftSection
from services.seeds import seed_for


class Opens(Protocol):
    """The part of an Environment that playing needs."""

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
    rng = random.Random(seed_for("demonstration", seed, task))
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
        noise = rng.random() < sft.noise
        if noise:
            action, kept = teacher.disturb(action, now, rng), ""
        steps.append(DemoStep(template.render(first, turns, now), answer, action, train=not noise))
        turns.append(Turn(observation=now.observation, action=action, admissible=now.admits(action), kept=kept))
        now = session.step(action)
    return Demonstration(task, steps, now.won)


@dataclass(slots=True, kw_only=True)
class _Watched:
    """An episode that the policy plays and the scripted player watches."""

    session: Session
    player: Demonstrator
    first: Outcome
    now: Outcome
    turns: list[Turn] = field(default_factory=list[Turn])
    corrections: dict[str, str] = field(default_factory=dict[str, str])
    """Prompt -> the scripted player's answer. A policy that goes in circles meets a prompt again."""


def corrections(
    environment: Opens, tasks: Sequence[str], *, teacher: Teacher, template: PromptTemplate, seed: int,
    sft: SftSection, max_steps: int, policy: Callable[[list[str]], list[str]],
) -> tuple[list[tuple[str, str]], int]:
    """Plays one episode of each task at once. Returns (prompt, the scripted player's answer) pairs and the wins.

    `policy` answers the prompts of all episodes that go on; its actions are executed. Each prompt of an episode is
    listed once. Raises the environment's errors.
    """
    watched: list[_Watched] = []
    for number, task in enumerate(tasks):
        session = environment.open(task)
        first = session.reset()
        player = teacher.player(first, random.Random(seed_for("correction", seed, task, number)), sft)
        watched.append(_Watched(session=session, player=player, first=first, now=first))
    while live := [one for one in watched if not one.now.done and len(one.turns) < max_steps]:
        prompts = [template.render(one.first, one.turns, one.now) for one in live]
        for one, prompt, said in zip(live, prompts, policy(prompts), strict=True):
            one.corrections.setdefault(prompt, written(one.player, template, one.first, one.turns, one.now))
            parsed, now = template.parse(said), one.now
            one.turns.append(Turn(observation=now.observation, action=parsed.action,
                                  admissible=now.admits(parsed.action), kept=parsed.kept))
            one.now = one.session.step(parsed.action)
    return [pair for one in watched for pair in one.corrections.items()], sum(one.now.won for one in watched)
