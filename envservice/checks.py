"""Checks that an environment has the form of envservice/base.py. It may be a user's, so each mistake is one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import combinations
from typing import Any, cast, get_args

from envservice.base import Environment, Replay, is_utf8
from envservice.wire import MAX_TASK
from services.amounts import number_of
from services.errors import UserError

_TEXTS = ("name", "engine", "version")
_METHODS = ("splits", "training_splits", "tasks", "task_type", "digest", "task_digest", "open")


def check_environment(made: object, named: str) -> None:
    """Raises UserError if `made` lacks a part of an Environment, or has one of a wrong type. `named`: its spec's
    name."""
    for part in _METHODS:
        if not callable(getattr(made, part, None)):
            raise UserError(f"{named} opens {made!r:.60}, which has no method {part}", "see Environment in "
                            "envservice/base.py, or make the spec by text_spec or dataset_spec")
    for part in _TEXTS:
        if not (isinstance(text := getattr(made, part, None), str) and text):
            raise UserError(f"the environment {named} has {part}={text!r:.60}, which is no text", "write it in quotes")
    if (replay := getattr(made, "replay", None)) not in get_args(Replay):
        raise UserError(f"the environment {named} has replay={replay!r:.60}",
                        f"choose one of {', '.join(get_args(Replay))}")
    splits: Any = cast("Environment", made).training_splits()
    if not (isinstance(splits, tuple | list) and len(cast("list[Any]", splits)) == 3):
        raise UserError(f"training_splits of {named} returned {splits!r:.60}",
                        "return three names: to train on, to choose the best checkpoint by, and to report on")


def tasks_of(environment: Environment, split: str) -> list[str]:
    """Returns the tasks of a split. Raises UserError unless they are a list of different texts that the API accepts."""
    tasks: Any = environment.tasks(split)
    whose = f"the split {split!r} of {environment.name}"
    if not isinstance(tasks, list | tuple):
        raise UserError(f"the tasks of {whose} are of type {type(tasks).__name__}", "return a list of texts")
    for task in cast("Iterable[Any]", tasks):
        if not isinstance(task, str) or not 0 < len(task) <= MAX_TASK or not is_utf8(task):
            raise UserError(f"{whose} has the task {task!r:.60}", f"name tasks by texts of 1 to {MAX_TASK} characters")
    listed = list(cast("Iterable[str]", tasks))
    if len(set(listed)) < len(listed):
        task, times = Counter(listed).most_common(1)[0]
        raise UserError(f"{whose} has the task {task!r:.60} {times} times", "list each task once")
    return listed


def check_apart(environment: Environment, splits: dict[str, list[str]]) -> None:
    """Raises UserError if a run's three splits have fewer than three names, or if two share a task. The run's score
    would be on games that it has trained on, or chosen its checkpoint by."""
    if len(splits) < 3:
        raise UserError(f"training_splits of {environment.name} names {' and '.join(splits)} alone",
                        "name three different ones, so that the score is on games that the run has not seen")
    for (one, its), (other, others) in combinations(splits.items(), 2):
        if shared := set(its) & set(others):
            overlap = f"{number_of(len(shared), 'task')}, such as {min(shared)!r:.60}"
            raise UserError(f"the splits {one!r} and {other!r} of {environment.name} share {overlap}",
                            "give each task to one split")
