"""The lists of games: official ones in a data folder, or generated ones. Task ids are the same on every machine.

Official layout, as `alfworld-download` makes it. Nothing is written into it, and traj_data.json is not needed:

    <data>/json_2.1.1/{train,valid_seen,valid_unseen}/<task>-<Obj>-<Movable|None>-<Recep>-<scene>/trial_*/game.tw-pddl

Splits of official games: the three above; `heldout`, about a quarter of the train game *folders*, chosen by their
names, so that no (task, object, receptacle, scene) of it is trained on; `train_kept`, the rest of train. `heldout` is
not valid_seen, because nearly all folders of that are in train too, and runs choose their best checkpoint on it. A task
id names the official split.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from envservice.alfworld import generator
from envservice.alfworld.game import TASK_TYPES, TaskType
from services.errors import EnvFault, UserError

_TYPE_OF_FOLDER: dict[str, TaskType] = {
    "pick_and_place_simple": "pick",
    "look_at_obj_in_light": "look",
    "pick_clean_then_place_in_recep": "clean",
    "pick_heat_then_place_in_recep": "heat",
    "pick_cool_then_place_in_recep": "cool",
    "pick_two_obj_and_place": "two",
}
_GAME_FILE = "game.tw-pddl"
_HELD_OUT_ONE_IN = 4
_TAIL_BYTES = 4096
_SOLVABLE = re.compile(rb'"solvable":\s*(true|false)')
VARIABLE = "ALFWORLD_DATA"
"""The variable that names the data folder if env.data does not."""
FETCH = "`pip install --no-deps alfworld==0.4.2 && alfworld-download`"
"""The command that downloads the official games. Set-up without --test installs no package of ALFWorld."""
DOWNLOAD = f"run {FETCH}, set {VARIABLE} to its folder, or unset it for generated games"


class Games(Protocol):
    """Games in splits. It is thread-safe."""

    name: str
    training_splits: tuple[str, str, str]
    """The splits to train on, to choose the best checkpoint by, and to report on. They share no game."""

    level_splits: tuple[str, str]
    """The splits that levels of generalisation (LevelGames) train on and choose checkpoints by. They share no game with
    `tested`."""

    def splits(self) -> list[str]: ...

    def tested(self, *, seen_rooms: bool) -> tuple[str, ...]:
        """Returns the games to report levels on, in rooms that training has seen, or in rooms that it has not."""
        ...

    def tasks(self, split: str) -> tuple[str, ...]:
        """Returns all task ids, sorted. Raises UserError for an unknown split and for missing or broken data."""
        ...

    def content(self, task: str) -> bytes:
        """Reads the game file. Raises KeyError for an unknown task, EnvFault if it cannot be read."""
        ...

    def origin(self, task: str) -> bytes:
        """Returns a digest that determines the content together with the task's id. Raises as `content` does."""
        ...


def task_type(task: str) -> TaskType:
    """Returns the type that a task id names, official or generated. Raises KeyError."""
    name = task.split("/")[2] if task.count("/") >= 2 else ""
    kind = name.partition("-")[0]
    if kind in TASK_TYPES:
        return kind
    try:
        return _TYPE_OF_FOLDER[kind]
    except KeyError:
        raise KeyError(task) from None


def is_held_out(folder: str) -> bool:
    """Returns whether a train game folder belongs to `heldout`. Only its name decides, so all machines agree."""
    return hashlib.blake2b(folder.encode(), digest_size=8).digest()[0] % _HELD_OUT_ONE_IN == 0


_OFFICIAL = ("train", "valid_seen", "valid_unseen")
_PARTS: dict[str, Callable[[str], bool]] = {
    "train_kept": lambda folder: not is_held_out(folder),
    "heldout": is_held_out,
}
"""Our splits of train, each with a test for its game folders."""


class OfficialGames:
    """The games of a data folder."""

    name = "alfworld"
    level_splits: tuple[str, str] = ("train_kept", "heldout")

    def __init__(self, data: Path, *, all_games: bool = False) -> None:
        """`all_games`: train on all of train, as the papers do. Raises UserError if the folder of games in `data` is
        missing or cannot be read."""
        self.training_splits: tuple[str, str, str] = ("train", "valid_seen", "valid_unseen") if all_games else \
            ("train_kept", "valid_seen", "heldout")
        self._root = data / "json_2.1.1"
        try:
            list(self._root.iterdir())
        except (FileNotFoundError, NotADirectoryError) as error:
            raise UserError(f"there are no ALFWorld games in {data}: no folder {self._root}", DOWNLOAD) from error
        except OSError as error:
            raise _unreadable(data, error) from error
        self._lists: dict[str, tuple[str, ...]] = {}
        self._listed: set[str] = set()

    def splits(self) -> list[str]:
        official = [split for split in _OFFICIAL if (self._root / split).is_dir()]
        return official + (list(_PARTS) if "train" in official else [])

    def tasks(self, split: str) -> tuple[str, ...]:
        if split not in self._lists:
            tasks = self._list(split)
            self._listed.update(tasks)  # first: another thread that sees the list opens its games
            self._lists[split] = tasks
        return self._lists[split]

    def tested(self, *, seen_rooms: bool) -> tuple[str, ...]:
        return self.tasks("valid_seen" if seen_rooms else "valid_unseen")

    def _list(self, split: str) -> tuple[str, ...]:
        if split in _PARTS:
            chosen = _PARTS[split]
            return tuple(task for task in self.tasks("train") if chosen(task.split("/")[2]))
        if split not in _OFFICIAL:
            splits = ", ".join((*_OFFICIAL, *_PARTS))
            raise UserError(f"ALFWorld has no split {split!r}", f"choose one of {splits}")
        folder = self._root / split
        if not folder.is_dir():
            raise UserError(f"the ALFWorld split {split} is missing: no folder {folder}", DOWNLOAD)
        try:
            tasks = sorted(f"{self.name}/{split}/{game}/{trial}" for game, trial in _scan(folder))
        except OSError as error:
            raise _unreadable(folder, error) from error
        if not tasks:
            raise UserError(f"the ALFWorld split {split} is empty: no solvable game in {folder}", DOWNLOAD)
        return tuple(tasks)

    def content(self, task: str) -> bytes:
        name, _, rest = task.partition("/")
        split = rest.partition("/")[0]
        if name == self.name and split in self.splits():
            self.tasks(split)
        if task not in self._listed:  # only listed ids become paths, so no id leads out of the data folder
            raise KeyError(task)
        path = self._root / rest / _GAME_FILE
        try:
            return path.read_bytes()
        except OSError as error:
            raise EnvFault(f"cannot read {path}: {error.strerror}") from error

    def origin(self, task: str) -> bytes:
        return hashlib.blake2b(self.content(task)).digest()


class GeneratedGames:
    """Games made from seeds. They have a name of their own, because results on them are not ALFWorld results."""

    name = generator.FAMILY
    training_splits: tuple[str, str, str] = ("train", "valid", "heldout")
    level_splits: tuple[str, str] = ("train", "valid")

    def splits(self) -> list[str]:
        return list(generator.GENERATED_SPLITS)

    def tasks(self, split: str) -> tuple[str, ...]:
        if split not in generator.GENERATED_SPLITS:
            raise UserError(
                f"generated games have no split {split!r}",
                f"choose one of {', '.join(self.splits())}, or set ALFWORLD_DATA for official games",
            )
        return tuple(sorted(generator.task_id(split, index) for index in range(generator.GENERATED_SPLITS[split])))

    def tested(self, *, seen_rooms: bool) -> tuple[str, ...]:
        """In `heldout`, rounds of one game of each type in seen and in unseen rooms alternate (generator.py)."""
        return tuple(task for task in self.tasks("heldout")
                     if (generator.parse_task_id(task)[1] // len(generator.TYPES) % 2 == 0) == seen_rooms)

    def content(self, task: str) -> bytes:
        split, index = generator.parse_task_id(task)
        return json.dumps(generator.generate(split, index)).encode()

    def origin(self, task: str) -> bytes:
        generator.parse_task_id(task)
        return generator.made_by()


def _unreadable(folder: Path, error: OSError) -> UserError:
    return UserError(f"the ALFWorld games in {folder} cannot be read ({error.strerror}: {error.filename})",
                     "make them readable for this user, or set ALFWORLD_DATA or env.data to another folder")


def _scan(folder: Path) -> Iterator[tuple[str, str]]:
    """Yields (game folder, trial folder) of every game that can be played and solved."""
    for game in os.scandir(folder):
        if game.name.partition("-")[0] not in _TYPE_OF_FOLDER or "Sliced" in game.name or not game.is_dir():
            continue
        for trial in os.scandir(game.path):
            if _solvable(Path(trial.path) / _GAME_FILE):
                yield game.name, trial.name


def _solvable(path: Path) -> bool:
    """Returns the game's flag `solvable`. It is read from the end of the file, where all official files have it, else
    from the entire file. Raises UserError for a broken file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            tail = file.read()
            match = _SOLVABLE.search(tail)
            if match and tail.rstrip().endswith(b"}"):
                return match[1] == b"true"
            file.seek(0)
            return json.loads(file.read()).get("solvable") is True
    except (FileNotFoundError, NotADirectoryError):
        return False  # a trial that never became a game
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise UserError(f"the game file {path} is broken: {error}", "delete it or download it again") from error
