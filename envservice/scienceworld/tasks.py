"""The 30 task types with their variations and splits, as a table, so that listing needs no Java. A test compares it
with the jar."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

Part = Literal["train", "dev", "test"]
PARTS: tuple[Part, ...] = get_args(Part)
COUNTS: dict[str, tuple[int, int, int]] = {
    "boil": (14, 7, 9), "change-the-state-of-matter-of": (14, 7, 9), "chemistry-mix": (16, 8, 8),
    "chemistry-mix-paint-secondary-color": (18, 9, 9), "chemistry-mix-paint-tertiary-color": (18, 9, 9),
    "find-animal": (150, 75, 75), "find-living-thing": (150, 75, 75), "find-non-living-thing": (150, 75, 75),
    "find-plant": (150, 75, 75), "freeze": (14, 7, 9), "grow-fruit": (62, 31, 33), "grow-plant": (62, 31, 33),
    "identify-life-stages-1": (6, 3, 5), "identify-life-stages-2": (4, 2, 4),
    "inclined-plane-determine-angle": (84, 42, 42), "inclined-plane-friction-named-surfaces": (692, 346, 348),
    "inclined-plane-friction-unnamed-surfaces": (80, 40, 42), "lifespan-longest-lived": (62, 31, 32),
    "lifespan-longest-lived-then-shortest-lived": (62, 31, 32), "lifespan-shortest-lived": (62, 31, 32),
    "measure-melting-point-known-substance": (218, 109, 109), "measure-melting-point-unknown-substance": (150, 75, 75),
    "melt": (14, 7, 9), "mendelian-genetics-known-plant": (60, 30, 30),
    "mendelian-genetics-unknown-plant": (240, 120, 120), "power-component": (10, 5, 5),
    "power-component-renewable-vs-nonrenewable-energy": (10, 5, 5), "test-conductivity": (450, 225, 225),
    "test-conductivity-of-unknown-substances": (300, 150, 150), "use-thermometer": (270, 135, 135),
}
"""Number of variations in train, dev and test, which are numbered from 0 in this order. The types are in the order of
the published indices."""

_NAMES = tuple(COUNTS)
TRAIN_TYPES = frozenset(_NAMES[i] for i in (0, 22, 9, 20, 25, 26, 27, 5, 6, 7, 10, 2, 3, 17, 19, 12, 14, 15, 23))
"""The 19 task types that L2 trains on."""
HELD_OUT_TYPES = frozenset(_NAMES[i] for i in (1, 21, 28, 8, 11, 4, 18, 13, 16, 24))
"""The 10 task types that L2 reports on. use-thermometer is in no level."""

ELECTRICAL = frozenset(name for name in _NAMES if name.startswith(("power-", "test-conductivity")))
"""Types that cannot be solved without connecting objects."""

Level = Literal["all", "L0", "L1", "L2"]
SPLITS: dict[str, tuple[Part, frozenset[str]]] = {
    **{part: (part, frozenset(_NAMES)) for part in PARTS},
    **{f"levels_{part}": (part, TRAIN_TYPES | HELD_OUT_TYPES) for part in PARTS},
    **{f"seen_{part}": (part, TRAIN_TYPES) for part in PARTS},
    "unseen_test": ("test", HELD_OUT_TYPES),
}
"""Maps the name of a split to its part and its task types."""
LEVELS: dict[Level, tuple[str, str, str]] = {
    "all": ("train", "dev", "test"),
    # The published level reports on the variations of dev. So that no task is in two splits, the best checkpoint is
    # chosen by those of test.
    "L0": ("levels_train", "levels_test", "levels_dev"),
    "L1": ("levels_train", "levels_dev", "levels_test"),
    "L2": ("seen_train", "seen_dev", "unseen_test"),
}
"""The splits to train on, to choose the best checkpoint by, and to report on."""


@dataclass(frozen=True, slots=True)
class Place:
    """The parts of a task id."""

    part: Part
    name: str
    variation: int

    @property
    def id(self) -> str:
        """Returns the id, such as `scienceworld/test/boil/21`."""
        return f"scienceworld/{self.part}/{self.name}/{self.variation}"


def variations(name: str, part: Part) -> range:
    """Returns the variations of a task type in a part."""
    counts = COUNTS[name]
    start = sum(counts[: PARTS.index(part)])
    return range(start, start + counts[PARTS.index(part)])


def split_tasks(split: str, names: Collection[str]) -> Iterator[Place]:
    """Yields the tasks of a split whose types are among `names`. Raises KeyError for an unknown split."""
    part, types = SPLITS[split]
    return (Place(part, name, variation) for name in _NAMES if name in types and name in names
            for variation in variations(name, part))


def sample(name: str, part: Part, count: int) -> list[Place]:
    """Returns up to `count` variations of a type, evenly spaced over a part."""
    places = list(split_tasks(part, {name}))
    return places[:: max(1, len(places) // count)][:count]


def place_of(task: str) -> Place:
    """Reads a task id. Raises KeyError for any other text."""
    match task.split("/"):
        case ["scienceworld", "train" | "dev" | "test" as part, name, number] if name in COUNTS and number.isdecimal():
            place = Place(part, name, int(number))
            if place.variation in variations(name, part) and place.id == task:
                return place
    raise KeyError(task)
