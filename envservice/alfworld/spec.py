"""The EnvironmentSpec of ALFWorld."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from envservice.alfworld.environment import AlfworldEnvironment, data_folder, holding, open_environment
from envservice.alfworld.game import OldGame, UnknownGame, load_game
from envservice.alfworld.lost_episodes import explain
from envservice.alfworld.prompts import (
    AlfworldCompactMetaTemplate,
    AlfworldCompactTemplate,
    AlfworldFullTemplate,
    AlfworldMemoryChatTemplate,
    AlfworldMemoryTemplate,
    AlfworldMetaTemplate,
)
from envservice.alfworld.tasks import FETCH, VARIABLE
from envservice.alfworld.teacher import TEACHER
from envservice.alfworld.textworld_engine import missing_packages
from envservice.base import Environment
from envservice.spec import EnvironmentSpec, Finding
from services.config.tree import EnvSection
from services.errors import UserError

_PUBLISHED_STEPS = 50
"""The limit of steps in published results."""
_SPLITS = ("train", "valid_seen", "valid_unseen")


def describe(env: EnvSection) -> str:
    """Names the source of the games, their types, and the engine in one line."""
    data, chosen = data_folder(env), env.alfworld
    where = f"official, in {data}" if data else "generated"
    if not data and chosen.training_games == "all":
        where += " (training_games=all chooses official ones, and does nothing)"
    level = "" if chosen.level == "all" else f", level {chosen.level}"
    if chosen.level == "L2":
        level += f", trained without {', '.join(chosen.unseen_types)}"
    return f"{where}, types {', '.join(chosen.task_types)}{level}, engine {chosen.engine}"


def check(environment: Environment, task: str) -> None:
    """Parses the game without the shipped engine, which keeps megabytes for every game that it opens. Raises UserError
    for a game of an older alfworld, EnvFault for one that is broken or unknown."""
    assert isinstance(environment, AlfworldEnvironment)
    try:
        environment.game(task)
    except OldGame as error:
        raise UserError(f"game {task} is old: {error}",
                        f"get the present games into an empty folder: {FETCH}") from error


def findings() -> Iterator[Finding]:
    """Reports on the official games, and on the shipped engine, which only comparisons need."""
    yield _games()
    missing = missing_packages()
    yield Finding(check="alfworld extra", status="warning" if missing else "ok",
                  detail=f"{', '.join(missing)} missing: no env.alfworld.engine=textworld" if missing else "installed",
                  fix="scripts/setup --test" if missing else "")


def _games() -> Finding:
    folder = os.environ.get(VARIABLE)
    if not folder:
        return Finding(check=VARIABLE, status="ok", detail="not set: generated games are used")
    root = Path(folder) / "json_2.1.1"
    files = {split: sorted((root / split).glob("*/*/game.tw-pddl")) for split in _SPLITS}
    counts = {split: len(paths) for split, paths in files.items()}
    if old := [split for split, paths in files.items() if paths and _is_old(paths[0])]:
        return Finding(check=VARIABLE, status="warning", detail=(
            f"the games of {', '.join(old)} are from before alfworld 0.4, and no run can play them"),
            fix=f"get the present games into an empty folder, and set {VARIABLE} to it: {FETCH}")
    return Finding(check=VARIABLE, status="ok" if counts["train"] else "error",
                   detail=", ".join(f"{split} {count}" for split, count in counts.items()),
                   fix="" if counts["train"] else f"{FETCH}, or unset {VARIABLE} for generated games")


def _is_old(file: Path) -> bool:
    """Returns whether a game is of an older alfworld. The check before a run reports games that cannot be read."""
    try:
        load_game(file.read_bytes())
    except OldGame:
        return True
    except (UnknownGame, OSError):
        return False
    return False


SPEC = EnvironmentSpec(
    open=open_environment, holding=holding, check=check, describe=describe, findings=findings, teacher=TEACHER,
    explain=explain,
    prompts={"full": AlfworldFullTemplate, "compact": AlfworldCompactTemplate, "memory": AlfworldMemoryTemplate,
             "memory-chat": AlfworldMemoryChatTemplate, "meta": AlfworldMetaTemplate,
             "compact-meta": AlfworldCompactMetaTemplate},
    max_steps=_PUBLISHED_STEPS,
    threaded=lambda env: env.alfworld.engine != "own",
)
