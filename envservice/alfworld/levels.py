"""Levels of generalisation: train on some task types and rooms, report on others.

    L0   task types that were trained on, in rooms that were seen in training; other games
    L1   the same types in unseen rooms
    L2   types that were never trained on (env.alfworld.unseen_types), in unseen rooms

The paper at hand (GCD) reports levels of RLVMR without naming their types and games, so these are our own. Every level
trains on the same games and chooses its best checkpoint on the same others, so one run can be reported on at all of
them.
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
        self.training_splits: tuple[str, str, str] = (TRAIN, VALID, level)
        self.level_splits = games.level_splits
        self._games = games
        self._unseen = frozenset(unseen_types)

    def splits(self) -> list[str]:
        return [*self._games.splits(), TRAIN, VALID, *LEVELS]

    def tasks(self, split: str) -> tuple[str, ...]:
        if split not in (TRAIN, VALID, *LEVELS):
            return self._games.tasks(split)
        train, valid = self.level_splits
        found = self._games.tasks(train if split == TRAIN else valid) if split in (TRAIN, VALID) else \
            self._games.tested(seen_rooms=split == "L0")
        return tuple(task for task in found if (task_type(task) in self._unseen) == (split == "L2"))

    def tested(self, *, seen_rooms: bool) -> tuple[str, ...]:
        return self._games.tested(seen_rooms=seen_rooms)

    def content(self, task: str) -> bytes:
        return self._games.content(task)

    def origin(self, task: str) -> bytes:
        return self._games.origin(task)
