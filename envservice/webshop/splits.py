"""The splits: goals to train on, to choose checkpoints by, and to report on; and the names of their tasks.

`Fixed`, the default: one order of goals for everyone, cut by index, so that no goal is in two parts:

    test   the first 500          eval   the next 1000          train   the rest         webshop/<split>/<goal index>

test and eval each have at most a sixth of all goals. For the official thousand products and for the human goals, these
are the splits of the original's evaluation.

`First500` (env.webshop.train_on_rest) holds out the first 500 alone, in the same order: train has all others, and
`first500` has these 500, of which eval has the even ones and test the odd ones.

`VerlAgent`, to compare with results that verl-agent and its descendants publish: each of its worker groups shuffles the
goals and draws the prices with its own seed, so index n is a different goal in each. Indices 0-499 are held out, but
workers with another seed train on most of these goals. Task ids name both: `webshop/<split>/<seed>-<index>`. The
original has train seeds 0-15 and validation seeds 1000-1127. Here the latter are halved into eval and test, so that the
best checkpoint is not chosen by the tasks that it is reported on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from envservice.webshop.goals import SEED
from services.errors import UserError

FAMILY = "webshop"
TEST, EVAL, SMALLEST_PART = 500, 1000, 6
NAMES = ("train", "eval", "test")
FIRST = "first500"
WORKER_SEEDS = {"train": range(16), "eval": range(1000, 1064), "test": range(1064, 1128)}
"""verl-agent's sixteen groups of workers and 128 validation workers."""
Place = tuple[int, int]
"""The seed of an order, and an index in it."""


class Splits(Protocol):
    """The places of each split's goals."""

    names: tuple[str, ...]

    def seeds(self, split: str) -> range:
        """Returns the seeds of the orders that the split's tasks name. Raises UserError for an unknown split."""
        ...

    def indices(self, split: str) -> range: ...

    def name(self, place: Place) -> str:
        """Returns the last part of a task id."""
        ...


class Fixed:
    """One order in three parts, with `count` goals in all."""

    names: tuple[str, ...] = NAMES

    def __init__(self, count: int) -> None:
        test, held = min(TEST, count // SMALLEST_PART), min(EVAL, count // SMALLEST_PART)
        self._parts = {"test": range(test), "eval": range(test, test + held), "train": range(test + held, count)}

    def seeds(self, split: str) -> range:
        _check(split, self.names)
        return range(SEED, SEED + 1)

    def indices(self, split: str) -> range:
        return self._parts[split]

    def name(self, place: Place) -> str:
        return str(place[1])


class First500(Fixed):
    """One order, of which the first 500 are held out, or a sixth if there are fewer than 3,000 goals."""

    names = (*NAMES, FIRST)

    def __init__(self, count: int) -> None:
        super().__init__(count)
        held = len(self._parts["test"])
        self._parts = {"eval": range(0, held, 2), "test": range(1, held, 2), FIRST: range(held),
                       "train": range(held, count)}


class VerlAgent:
    """An order for each seed. The first indices are held out."""

    names: tuple[str, ...] = NAMES

    def __init__(self, count: int) -> None:
        held = min(TEST, count // SMALLEST_PART)
        self._parts = {"test": range(held), "eval": range(held), "train": range(held, count)}

    def seeds(self, split: str) -> range:
        _check(split, self.names)
        return WORKER_SEEDS[split]

    def indices(self, split: str) -> range:
        return self._parts[split]

    def name(self, place: Place) -> str:
        return f"{place[0]}-{place[1]}"


def tasks(splits: Splits, split: str) -> Iterator[str]:
    """Returns all task ids of a split. Raises UserError for an unknown one."""
    for seed in splits.seeds(split):
        for index in splits.indices(split):
            yield f"{FAMILY}/{split}/{splits.name((seed, index))}"


def place_of(splits: Splits, task: str) -> Place:
    """Finds the goal of a task id. Raises KeyError for an id that `tasks` does not list."""
    environment, _, rest = task.partition("/")
    split, _, name = rest.partition("/")
    numbers = [int(part) for part in name.split("-") if part.isascii() and part.isdigit() and len(part) < 20]
    if environment != FAMILY or split not in splits.names or not numbers:
        raise KeyError(task)
    seeds, indices = splits.seeds(split), splits.indices(split)
    place = (numbers[0] if len(numbers) > 1 else seeds.start, numbers[-1])
    if place[0] not in seeds or place[1] not in indices or f"{FAMILY}/{split}/{splits.name(place)}" != task:
        raise KeyError(task)
    return place


def _check(split: str, names: tuple[str, ...]) -> None:
    if split not in names:
        raise UserError(f"WebShop has no split {split!r}", f"choose one of {', '.join(names)}")
