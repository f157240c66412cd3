"""ALFWorld as an Environment: official or generated games, played by our engine or the shipped one."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path
from typing import Literal

from envservice.alfworld import engine as own
from envservice.alfworld.game import TASK_TYPES, Game, load_game
from envservice.alfworld.tasks import FETCH, VARIABLE, Games, GeneratedGames, OfficialGames, task_type
from envservice.alfworld.textworld_engine import TextworldSession, require_textworld
from envservice.base import Replay, Session
from services.config.tree import EnvSection
from services.errors import UserError

# Levels of generalisation: types and rooms that training has seen, or has not.
#
#     L0   all types, in rooms that were seen in training; other games
#     L1   all types, in unseen rooms
#     L2   types that were never trained on (env.alfworld.unseen_types), in unseen rooms
#
# These are the levels of RLVMR's code (digitalhuman, agent_system/environments/env_manager.py and
# config_tw_*_ood.yaml), on which GCD reports too: L0 and L1 train on all types, L2 without cool and two. That code
# trains on all games of train and has no games to choose a checkpoint by; here some are held back for that.

TRAIN, VALID = "levels_train", "levels_valid"
LEVELS = ("L0", "L1", "L2")


class LevelGames:
    """A list of games that has the splits of the levels in addition to those of `games`."""

    def __init__(self, games: Games, level: str, unseen_types: Collection[str]) -> None:
        """`level`, one of LEVELS, is the split to report on."""
        self.name = games.name
        self.level_splits = games.level_splits
        trains, valid = (TRAIN, VALID) if level == "L2" else games.level_splits
        self.training_splits: tuple[str, str, str] = (trains, valid, level)
        self._games = games
        self._unseen = frozenset(unseen_types)

    def splits(self) -> list[str]:
        return [*self._games.splits(), TRAIN, VALID, *LEVELS]

    def tasks(self, split: str) -> tuple[str, ...]:
        if split not in (TRAIN, VALID, *LEVELS):
            return self._games.tasks(split)
        if split in ("L0", "L1"):
            return self._games.tested(seen_rooms=split == "L0")
        train, valid = self.level_splits
        tested = (self._games.tested(seen_rooms=False) if split == "L2"
                  else self._games.tasks(train if split == TRAIN else valid))
        return tuple(task for task in tested if (task_type(task) in self._unseen) == (split == "L2"))

    def tested(self, *, seen_rooms: bool) -> tuple[str, ...]:
        return self._games.tested(seen_rooms=seen_rooms)

    def content(self, task: str) -> bytes:
        return self._games.content(task)

    def origin(self, task: str) -> bytes:
        return self._games.origin(task)


_PARSED_GAMES = 512
"""Number of parsed games to keep. Each takes tens of kilobytes."""


class AlfworldEnvironment:
    """The environment. `task_types` narrows the lists and digests of splits, but every game can be opened."""

    replay: Replay = "pure"

    def __init__(
        self,
        games: Games,
        *,
        engine: Literal["own", "textworld"] = "own",
        task_types: Collection[str] = TASK_TYPES,
        exact_state: bool = False,
    ) -> None:
        """Raises UserError if the engine is `textworld` and it is not installed."""
        self.name = games.name
        self.engine = engine
        self.version = own.VERSION if engine == "own" else require_textworld()
        self._games = games
        self._exact_state = exact_state
        self._types = frozenset(task_types)
        self._lists: dict[str, list[str]] = {}
        self._origins: dict[str, bytes] = {}  # splits overlap, and reading thousands of files takes seconds
        self._digesting = threading.Lock()
        self._parsed = lru_cache(maxsize=_PARSED_GAMES)(self._parse)

    def splits(self) -> list[str]:
        return self._games.splits()

    def training_splits(self) -> tuple[str, str, str]:
        return self._games.training_splits

    def task_type(self, task: str) -> str:
        return task_type(task)

    def tasks(self, split: str) -> list[str]:
        if split not in self._lists:
            self._lists[split] = [task for task in self._games.tasks(split) if task_type(task) in self._types]
        if not self._lists[split]:
            raise UserError(
                f"the split {split} of {self.name} has no game of the types {', '.join(sorted(self._types))}",
                "widen env.alfworld.task_types",
            )
        return list(self._lists[split])

    def digest(self, split: str) -> str:
        """Covers ids and contents. For generated games it covers ids and the generator, since making all takes long."""
        total = hashlib.blake2b(digest_size=16)
        with self._digesting:
            for task in self.tasks(split):
                if task not in self._origins:
                    self._origins[task] = self._games.origin(task)
                total.update(task.encode() + b"\0" + self._origins[task])
        return total.hexdigest()

    def task_digest(self, task: str) -> str:
        return hashlib.blake2b(self._games.content(task), digest_size=16).hexdigest()

    def open(self, task: str) -> Session:
        if self.engine == "textworld":
            return TextworldSession(json.loads(self._games.content(task)))
        return own.OwnSession(self._parsed(task), exact_state=self._exact_state)

    def content(self, task: str) -> bytes:
        """Reads the game file. Raises as `open` does."""
        return self._games.content(task)

    def game(self, task: str) -> Game:
        """Returns the parsed game, which sessions share. Raises as `open` does."""
        return self._parsed(task)

    def _parse(self, task: str) -> Game:
        return load_game(self._games.content(task))


def open_environment(env: EnvSection) -> AlfworldEnvironment:
    """Opens the environment of a config: games of env.data, else those of $ALFWORLD_DATA, else generated ones.

    Raises UserError for missing data and for a missing reference engine.
    """
    data = data_folder(env)
    return _environment(_official(data, env) if data else GeneratedGames(), env)


def holding(env: EnvSection, task: str) -> AlfworldEnvironment:
    """Opens the environment that a task id names, official or generated, whichever the config asks for.

    Raises UserError as open_environment does, and KeyError for an id that is not ALFWorld's.
    """
    named, data = task.partition("/")[0], data_folder(env)
    if named == GeneratedGames.name:
        return _environment(GeneratedGames(), env)
    if named != OfficialGames.name:
        raise KeyError(task)
    if data is None:
        raise UserError(f"{task} is an official game and {VARIABLE} is not set",
                        f"run {FETCH}, and set {VARIABLE} to its folder")
    return _environment(_official(data, env), env)


def data_folder(env: EnvSection) -> Path | None:
    """Returns the folder of the official games, or None for generated ones."""
    data = env.data or os.environ.get(VARIABLE)
    return Path(data).expanduser() if data else None


def _official(data: Path, env: EnvSection) -> OfficialGames:
    return OfficialGames(data, all_games=env.alfworld.training_games == "all")


def _environment(games: Games, env: EnvSection) -> AlfworldEnvironment:
    if env.alfworld.level != "all":
        games = LevelGames(games, env.alfworld.level, env.alfworld.unseen_types)
    return AlfworldEnvironment(games, engine=env.alfworld.engine, task_types=env.alfworld.task_types,
                               exact_state=env.alfworld.exact_state)
