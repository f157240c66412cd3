"""Rooms and what lies in them: fixed layouts per room number, random contents per game.

The tables in rooms.json say which receptacles a kind of room has and how many (nine quantiles), how often each kind of
object occurs there and where it usually lies. They summarise the official training games but for those of the split
`heldout` (tasks.py), so that nothing made from them has seen a held-out game; no official room is copied.

A room is fixed by its kind and number, so that numbers can be held out as unseen rooms. Receptacles keep their ids, and
with them their displayed numbers, in every game of that room.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from services.seeds import seed_for

SHARED_PLACE = 0.35
"""Probability that a further receptacle of a kind is reached from the place of the one before it."""
ALREADY_COOL = 0.08
DECOR_AT_RECEPTACLE = 0.13


@dataclass(frozen=True, slots=True)
class Receptacle:
    """`kind` is the PDDL type without its suffix; `location` is the place it is reached from."""

    kind: str
    id: str
    location: str


@dataclass(frozen=True, slots=True)
class Item:
    """An object; decor lies in no receptacle."""

    kind: str
    id: str
    location: str
    receptacle: Receptacle | None
    cool: bool = False


@dataclass(frozen=True, slots=True)
class Room:
    """A layout without its contents."""

    kind: str
    number: int
    receptacles: tuple[Receptacle, ...]
    start: str
    """Where the agent stands at reset: no receptacle is reached from there."""

    @property
    def kinds(self) -> list[str]:
        """Kinds of receptacle present, sorted."""
        return sorted({receptacle.kind for receptacle in self.receptacles})


class Tables:
    """rooms.json, with its space-separated lists as sets."""

    def __init__(self) -> None:
        text = Path(__file__).with_name("rooms.json").read_text(encoding="utf-8")
        raw: dict[str, Any] = json.loads(text)
        self.openable = frozenset(raw["openable"].split())
        self.fixed = frozenset(raw["fixed"].split())
        self.flags = {flag: frozenset(kinds.split()) for flag, kinds in raw["flags"].items()}
        self.contains = {receptacle: frozenset(kinds.split()) for receptacle, kinds in raw["contains"].items()}
        self.rooms: dict[str, dict[str, Any]] = raw["rooms"]

    def can_contain(self, receptacle: str, kind: str) -> bool:
        """May an object of this kind be put there?"""
        return kind in self.contains.get(receptacle, ())

    def homes(self, room: Room, kind: str) -> dict[str, int]:
        """Receptacle kinds of this room where the object usually lies, with weights."""
        at: dict[str, int] = self.rooms[room.kind]["objects"][kind]["at"]
        present = set(room.kinds)
        return {receptacle: weight for receptacle, weight in at.items() if receptacle in present}


@cache
def tables() -> Tables:
    """Read once per process."""
    return Tables()


class _Ids:
    """Draws ids in the official form, `Kind_bar__plus_01_dot_25_bar_..`, never the same twice."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.used: set[str] = set()

    def draw(self, kind: str) -> str:
        # A basin's id is that of the sink or bathtub around it; the displayed name is made from both parts.
        stem, suffix = (kind.removesuffix("Basin"), f"_bar_{kind}") if kind.endswith("Basin") else (kind, "")
        while True:
            spot = (self.rng.randrange(-499, 500), self.rng.randrange(0, 220), self.rng.randrange(-499, 500))
            name = stem + "".join(f"_bar_{_signed(value)}" for value in spot) + suffix
            if name not in self.used:
                self.used.add(name)
                return name


def _signed(hundredths: int) -> str:
    sign = "_minus_" if hundredths < 0 else "_plus_"
    return f"{sign}{abs(hundredths) // 100:02d}_dot_{abs(hundredths) % 100:02d}"


@lru_cache(maxsize=256)
def room(kind: str, number: int) -> Room:
    """The layout of one room: the same on every machine."""
    rng = random.Random(seed_for("alfworld-gen", "room", kind, number))
    ids = _Ids(rng)
    receptacles: list[Receptacle] = []
    for name, counts in tables().rooms[kind]["receptacles"].items():
        for copy in range(rng.choice(counts)):
            shared = copy > 0 and rng.random() < SHARED_PLACE
            location = receptacles[-1].location if shared else _location(len(receptacles) + 1)
            receptacles.append(Receptacle(name, ids.draw(name), location))
    return Room(kind, number, tuple(receptacles), _location(0))


def _location(index: int) -> str:
    return f"loc_bar_{index % 12}_bar_{index // 12}_bar_{index % 4}_bar_60"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the goal asks of the contents."""

    kind: str
    copies: int
    never_in: str
    """Kind of receptacle where the wanted objects must not lie at reset; empty: anywhere."""
    lamp: bool
    """A desk lamp must be present."""


def furnish(layout: Room, wanted: Wanted, rng: random.Random) -> list[Item]:
    """Random contents of a room: the wanted objects, what else is usual there, and decor."""
    ids = _Ids(rng)
    ids.used.update(receptacle.id for receptacle in layout.receptacles)
    items: list[Item] = []
    for kind, usual in tables().rooms[layout.kind]["objects"].items():
        homes = tables().homes(layout, kind)
        copies = 1 + sum(rng.random() < (usual["mean"] - 1) / 3 for _ in range(3))
        present = rng.random() < usual["present"]
        if kind == wanted.kind:
            copies, present = wanted.copies, True
            homes.pop(wanted.never_in, None)
        elif kind == "DeskLamp":
            copies, present = 1, present or wanted.lamp
        if present and homes:
            items += [_place(kind, homes, layout, ids) for _ in range(copies)]
    return items + _decor(layout, ids)


def _place(kind: str, homes: dict[str, int], layout: Room, ids: _Ids) -> Item:
    home = ids.rng.choices(list(homes), weights=list(homes.values()))[0]
    receptacle = ids.rng.choice([each for each in layout.receptacles if each.kind == home])
    chilled = home == "Fridge" and kind in tables().flags["coolable"] and ids.rng.random() < ALREADY_COOL
    return Item(kind, ids.draw(kind), receptacle.location, receptacle, chilled)


def _decor(layout: Room, ids: _Ids) -> list[Item]:
    items: list[Item] = []
    for index, kind in enumerate(tables().rooms[layout.kind]["decor"].split(), start=len(layout.receptacles) + 1):
        at_receptacle = ids.rng.random() < DECOR_AT_RECEPTACLE
        location = ids.rng.choice(layout.receptacles).location if at_receptacle else _location(index)
        items.append(Item(kind, ids.draw(kind), location, None))
    return items
