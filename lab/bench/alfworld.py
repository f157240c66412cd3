"""Our ALFWorld engine against the shipped one: same games, same actions, one process, one run, expert off.

On both sides a start parses the game file, loads and resets the game, and a step includes the list of admissible
commands. Times are CPU times of the process, so a busy machine does not change the ratio. Both sides play the first
commands of the walkthrough, then a seeded random walk that prefers to handle objects. All their records are compared.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence

from envservice.alfworld.engine import OwnSession
from envservice.alfworld.environment import open_environment
from envservice.alfworld.game import TASK_TYPES, load_game
from envservice.alfworld.tasks import task_type
from envservice.alfworld.textworld_engine import TextworldSession
from envservice.base import Outcome, Session
from lab.bench.figures import Figure, Report, silent
from services.config.tree import EnvSection
from services.seeds import seed_for

_GAMES_PER_TYPE = 2
_STEPS = 40
_REPEATS = 20
"""Number of times that our engine plays everything, because once is shorter than a tick of the clock."""
_HANDLING = ("take", "move", "open", "close", "clean", "heat", "cool", "use")

Start = Callable[[bytes], tuple[Session, Outcome]]


def run(report: Report = silent) -> list[Figure]:
    """Runs the bench in about a minute. Raises UserError if the shipped engine is not installed."""
    games = _games()
    _start_shipped(games[0])  # the first start also pays for its imports
    script = [_walk(game, number) for number, game in enumerate(games)]
    report("the shipped engine", 0, 2)
    shipped_starts, shipped_steps, shipped = _play(_start_shipped, games, script)
    report("ours", 1, 2)
    own_starts, own_steps, own = _play(_start_own, games * _REPEATS, script * _REPEATS)
    records = sum(map(len, shipped))
    pairs = (pair for game in zip(own[: len(games)], shipped, strict=True) for pair in zip(*game, strict=True))
    differing = sum(ours != theirs for ours, theirs in pairs)
    rate, shipped_rate = len(own) * _STEPS / own_steps, len(games) * _STEPS / shipped_steps
    start, shipped_start = 1000 * own_starts / len(own), 1000 * shipped_starts / len(games)
    kind = "official" if open_environment(EnvSection()).name == "alfworld" else "generated"
    return [
        Figure(name="steps", value=rate, unit="steps/s/core", reference=shipped_rate, ratio=rate / shipped_rate),
        Figure(name="load + reset", value=start, unit="ms", reference=shipped_start, ratio=shipped_start / start),
        Figure(name=f"differing records on {len(games)} {kind} games", value=differing, unit=f"of {records}"),
    ]


def _games() -> list[bytes]:
    """Returns the game files of a fixed draw from the validation split, with equally many of each task type."""
    environment = open_environment(EnvSection())
    tasks = environment.tasks(environment.training_splits()[1])
    rng = random.Random(seed_for("bench", "alfworld"))
    chosen = [
        task
        for kind in TASK_TYPES
        for task in rng.sample([each for each in tasks if task_type(each) == kind], _GAMES_PER_TYPE)
    ]
    return [environment.content(task) for task in chosen]


def _start_own(game: bytes) -> tuple[Session, Outcome]:
    session = OwnSession(load_game(game))
    return session, session.reset()


def _start_shipped(game: bytes) -> tuple[Session, Outcome]:
    session = TextworldSession(json.loads(game))
    return session, session.reset()


def _walk(game: bytes, number: int) -> list[str]:
    """Returns _STEPS admissible commands."""
    rng = random.Random(seed_for("bench", "alfworld", number))
    session, outcome = _start_own(game)
    commands: list[str] = json.loads(game)["walkthrough"][:-1]
    for command in commands:
        outcome = session.step(command)
    while len(commands) < _STEPS:
        handling = [each for each in outcome.admissible_actions if each.startswith(_HANDLING)]
        commands.append(rng.choice(handling if handling and rng.random() < 0.5 else outcome.admissible_actions))
        outcome = session.step(commands[-1])
    return commands


def _play(
    start: Start, games: Sequence[bytes], script: Sequence[Sequence[str]]
) -> tuple[float, float, list[list[Outcome]]]:
    """Returns the CPU seconds of all starts, those of all steps, and the records of each game."""
    starting = stepping = 0.0
    records: list[list[Outcome]] = []
    for game, commands in zip(games, script, strict=True):
        begun = time.process_time()
        session, first = start(game)
        started = time.process_time()
        outcomes = [session.step(command) for command in commands]
        stepping += time.process_time() - started
        starting += started - begun
        records.append([first, *outcomes])
    return starting, stepping, records
