"""Levels of generalisation: types and rooms that training has seen, or has not.

    L0   all types, in rooms that were seen in training; other games
    L1   all types, in unseen rooms
    L2   types that were never trained on (env.alfworld.unseen_types), in unseen rooms

These are the levels of RLVMR's code (digitalhuman, agent_system/environments/env_manager.py and config_tw_*_ood.yaml),
on which GCD reports too: L0 and L1 train on all types, L2 without cool and two. That code trains on all games of
train and has no games to choose a checkpoint by; here some are held back for that.
"""

from __future__ import annotations

from collections.abc import Collection

from envservice.alfworld.tasks import Games, task_type

TRAIN, VALID = "levels_train", "levels_valid"
LEVELS = ("L0", "L1", "L2")


class LevelGames:
    """A list of games with the splits of the levels beside its own."""

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
        found = (self._games.tested(seen_rooms=False) if split == "L2"
                 else self._games.tasks(train if split == TRAIN else valid))
        return tuple(task for task in found if (task_type(task) in self._unseen) == (split == "L2"))

    def tested(self, *, seen_rooms: bool) -> tuple[str, ...]:
        return self._games.tested(seen_rooms=seen_rooms)

    def content(self, task: str) -> bytes:
        return self._games.content(task)

    def origin(self, task: str) -> bytes:
        return self._games.origin(task)
