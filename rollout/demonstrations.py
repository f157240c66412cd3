"""Demonstrations for the cold start: a scripted player's episodes as prompt and response texts.

Part of the steps are noise: executed, so that what follows shows recoveries, but not trained on (DART, Laskey et al.
2017, arXiv 1703.09327). Half of the noise is a random admissible action, half a corrupted, inadmissible one.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from envservice.alfworld.prompts import choices
from envservice.alfworld.renumbered import Renumbered
from envservice.alfworld.searcher import Move, Searcher
from envservice.base import Environment, Outcome, PromptTemplate, Turn
from services.config import SftSection
from services.seeds import seed_for

_HIGHEST_NUMBER = 30
"""Of the numbers that corrupted actions name."""


@dataclass(frozen=True, slots=True)
class DemoStep:
    """One step in text."""

    prompt_text: str
    response_text: str
    train: bool
    """False: a noise step, executed but not to be imitated."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One episode. Lost ones are of no use for training."""

    task: str
    steps: list[DemoStep]
    won: bool


def demonstrate(
    environment: Environment,
    task: str,
    *,
    seed: int,
    sft: SftSection,
    max_steps: int,
    template: PromptTemplate,
    renumber: bool = False,
) -> Demonstration:
    """Plays one episode of `task` and writes down each step as the policy would see and answer it.

    The same seed gives the same episode; `renumber` permutes the numbers of its objects. Raises what the environment
    raises.
    """
    rng = random.Random(seed_for("demonstration", seed, task))
    session = environment.open(task)
    if renumber:
        session = Renumbered(session, seed=seed_for("numbers", seed, task))
    first = now = session.reset()
    player = Searcher(first, jump=sft.jump, rng=rng)
    turns: list[Turn] = []
    steps: list[DemoStep] = []
    while not now.done and len(turns) < max_steps:
        move = player.act(now)
        noise = rng.random() < sft.noise
        if noise:
            move = Move(move.thought, disturb(move.action, now, rng))
        steps.append(DemoStep(template.render(first, turns, now), _answer(move), train=not noise))
        turns.append(Turn(
            observation=now.observation, action=move.action, admissible=move.action in now.admissible_actions))
        now = session.step(move.action)
    return Demonstration(task, steps, now.won)


def _answer(move: Move) -> str:
    return f"<think>{move.thought}</think><action>{move.action}</action>"


def disturb(action: str, now: Outcome, rng: random.Random) -> str:
    """In place of `action`: any admissible one, or one that is not, made by changing a number in it."""
    if rng.random() < 0.5:
        return rng.choice(choices(now))
    numbered = action if re.search(r"\d", action) else rng.choice([each for each in choices(now) if each[-1].isdigit()])
    while True:
        spot = rng.choice(list(re.finditer(r"\d+", numbered)))
        corrupted = f"{numbered[: spot.start()]}{rng.randint(1, _HIGHEST_NUMBER)}{numbered[spot.end() :]}"
        if corrupted not in now.admissible_actions:
            return corrupted
