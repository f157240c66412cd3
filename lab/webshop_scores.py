"""Measures the scores of players without a model in WebShop: the baselines of training in docs/environments.md.

    python -m lab.webshop_scores [--split test] [--data FOLDER] [--strict]

`random` takes any offered click, or searches for a random half of the wish if a search is offered. `shopper` is the
scripted player of the cold start. Both have fifteen steps, and score zero if they buy nothing.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from envservice.base import Outcome
from envservice.webshop.environment import WebshopEnvironment, open_webshop
from envservice.webshop.reader import instruction_of, parse_request
from envservice.webshop.session import SEARCH_ACTION
from envservice.webshop.shopper import STEPS, Shopper, content_words
from services.config.env import WebshopSection
from services.seeds import seed_for

Player = Callable[[Outcome], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Means over tasks, as published results name them."""

    score: float
    """The mean score, in [0, 1]."""
    success: float
    steps: float


def random_player(first: Outcome, seed: int) -> Player:
    """Makes a player that clicks anything offered and searches for a random half of the wish's words."""
    rng, words = random.Random(seed), content_words(parse_request(instruction_of(first)).wish)

    def act(now: Outcome) -> str:
        action = rng.choice(now.admissible_actions)
        return f"search[{' '.join(rng.sample(words, max(1, len(words) // 2)))}]" if action == SEARCH_ACTION else action

    return act


def shopper(first: Outcome, seed: int) -> Player:
    """Makes the scripted player, which needs no seed."""
    del seed
    player = Shopper(first)
    return lambda now: player.act(now).action


PLAYERS: dict[str, Callable[[Outcome, int], Player]] = {"random": random_player, "shopper": shopper}


def measure(environment: WebshopEnvironment, tasks: Sequence[str], make: Callable[[Outcome, int], Player]) -> Scores:
    """Plays one episode per task."""
    totals = [_play(environment, task, make) for task in tasks]
    score, won, steps = (sum(column) / len(tasks) for column in zip(*totals, strict=True))
    return Scores(score=score, success=won, steps=steps)


def _play(
    environment: WebshopEnvironment, task: str, make: Callable[[Outcome, int], Player]
) -> tuple[float, float, float]:
    session = environment.open(task)
    now = session.reset()
    act, steps = make(now, seed_for("webshop-scores", task)), 0
    while not now.done and steps < STEPS:
        now, steps = session.step(act(now)), steps + 1
    return float(now.info["task_score"]), float(now.won), float(steps)


def main() -> None:
    """Prints a line per player."""
    parser = argparse.ArgumentParser(description="scores of players without a model")
    parser.add_argument("--split", default="test")
    parser.add_argument("--data", type=Path, default=None, help="folder with the official files; else our catalogue")
    parser.add_argument("--strict", action="store_true", help="strict options")
    args = parser.parse_args()
    environment = open_webshop(args.data, WebshopSection(strict_options=args.strict))
    tasks = environment.tasks(args.split)
    print(f"{environment.name} {environment.version}: {len(tasks)} goals of {args.split}, "
          f"digest {environment.digest(args.split)}")
    for name, make in PLAYERS.items():
        mean = measure(environment, tasks, make)
        print(f"{name:8} score {100 * mean.score:5.1f}  success {100 * mean.success:5.1f} %  steps {mean.steps:.1f}")


if __name__ == "__main__":
    main()
