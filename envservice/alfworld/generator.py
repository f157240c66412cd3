"""New ALFWorld games from seeds, in the official file format: all six task types, each with a walkthrough that wins.

A game is a pure function of (split, index): the same on every machine. Rooms 1 to 24 of a kind are seen in training,
25 to 30 are held out. `train` and `valid` play seen rooms with new contents; in `heldout`, rounds of six games in seen
and in unseen rooms alternate. Results on these games are not ALFWorld numbers and are labelled as generated everywhere.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from envservice.alfworld import generator_pddl as pddl
from envservice.alfworld.generator_rooms import Item, Receptacle, Room, Wanted, furnish, room, tables
from services import seeds
from services.seeds import seed_for

FAMILY = "alfworld-gen"
TYPES = ("pick", "look", "clean", "heat", "cool", "two")
GENERATED_SPLITS: dict[str, int] = {"train": 3000, "valid": 144, "heldout": 768}
"""Games per split; a sixth of them of each type."""

_HERE = Path(__file__).parent
_MADE_BY = (
    *(_HERE / name for name in ("generator.py", "generator_pddl.py", "generator_rooms.py", "domain.pddl",
                                "grammar.twl2", "rooms.json")), Path(seeds.__file__))
"""Decides what is in a game, together with its split and index."""

_SEEN_ROOMS = range(1, 25)
_UNSEEN_ROOMS = range(25, 31)
_EVERYWHERE = {"bathroom": 30, "bedroom": 30, "living": 25, "kitchen": 15}
_ROOMS = {
    "pick": _EVERYWHERE,
    "two": _EVERYWHERE,
    "look": {"bedroom": 80, "living": 20},
    "clean": {"kitchen": 80, "bathroom": 20},
    "heat": {"kitchen": 1},
    "cool": {"kitchen": 1},
}
_PROCESS = {"clean": ("cleanable", "SinkBasin"), "heat": ("heatable", "Microwave"), "cool": ("coolable", "Fridge")}
_NEVER_TARGETS = {"SinkBasin", "BathtubBasin", "HandTowelHolder", "TowelHolder", "LaundryHamper", "TVStand"}
_COPIES = {"two": (2, 2, 3, 3, 4)}
_FEW_COPIES = (1, 1, 1, 2, 2, 3, 4)
_LAMP = "DeskLamp"


@dataclass(frozen=True, slots=True)
class _Goal:
    type: str
    obj: str
    target: str
    """Kind of receptacle that receives the object; for `look`, the lamp."""


def task_type(index: int) -> str:
    """The type of every split's game `index`: known without generating it."""
    return TYPES[index % len(TYPES)]


def task_id(split: str, index: int) -> str:
    """`alfworld-gen/<split>/<type>-<index>`. Raises KeyError for an unknown split or index."""
    _check(split, index)
    return f"{FAMILY}/{split}/{task_type(index)}-{index:04d}"


def parse_task_id(task: str) -> tuple[str, int]:
    """The inverse of task_id. Raises KeyError for anything that task_id does not make."""
    family, _, rest = task.partition("/")
    split, _, name = rest.partition("/")
    number = name.rpartition("-")[2]
    if family != FAMILY or not (number.isascii() and number.isdigit()) or task_id(split, int(number)) != task:
        raise KeyError(task)
    return split, int(number)


def generate(split: str, index: int) -> dict[str, Any]:
    """Game `index` of a split: keys pddl_domain, grammar, pddl_problem, solvable, walkthrough.

    Raises KeyError for an unknown split or index.
    """
    _check(split, index)
    rng = random.Random(seed_for(FAMILY, split, index))
    layout, goal = _choose(split, index, rng)
    wanted = Wanted(
        kind=goal.obj,
        copies=rng.choice(_COPIES.get(goal.type, _FEW_COPIES)),
        # A pick or two game would otherwise be won at reset.
        never_in=goal.target if goal.type in ("pick", "two") else "",
        lamp=goal.type == "look",
    )
    items = furnish(layout, wanted, rng)
    sentence = rng.choice(pddl.SENTENCES[goal.type]).format(obj=goal.obj.lower(), target=goal.target.lower())
    condition = pddl.GOALS[goal.type].format(obj=goal.obj, target=goal.target)
    return {
        "pddl_domain": pddl.domain(),
        "grammar": pddl.grammar(sentence),
        "pddl_problem": pddl.problem(f"gen_{split}_{index:04d}", layout, items, condition),
        "solvable": True,
        "walkthrough": _Walk(layout, items).solve(goal, rng),
    }


@cache
def made_by() -> bytes:
    """blake2b over the generator, its tables and its seeds: where it and the index are the same, so is the game.

    The reverse does not hold: a changed comment changes it too.
    """
    return hashlib.blake2b(b"".join(hashlib.blake2b(path.read_bytes()).digest() for path in _MADE_BY)).digest()


def _check(split: str, index: int) -> None:
    if not 0 <= index < GENERATED_SPLITS[split]:
        raise KeyError(f"{split} has games 0 to {GENERATED_SPLITS[split] - 1}, not {index}")


def _choose(split: str, index: int, rng: random.Random) -> tuple[Room, _Goal]:
    """A room and a goal that can be reached in it; draws again where a room lacks the furniture."""
    kind = task_type(index)
    unseen = split == "heldout" and index // len(TYPES) % 2 == 1
    while True:
        room_kind = rng.choices(list(_ROOMS[kind]), weights=list(_ROOMS[kind].values()))[0]
        layout = room(room_kind, rng.choice(_UNSEEN_ROOMS if unseen else _SEEN_ROOMS))
        targets = {obj: _targets(kind, layout, obj) for obj in tables().rooms[room_kind]["objects"]}
        objects = [obj for obj, receptacles in targets.items() if receptacles]
        if objects:
            usual = [tables().rooms[room_kind]["objects"][obj]["present"] for obj in objects]
            obj = rng.choices(objects, weights=usual)[0]
            return layout, _Goal(kind, obj, rng.choice(targets[obj]))


def _targets(kind: str, layout: Room, obj: str) -> list[str]:
    """Where a goal of this type can ask to put the object; empty where the object cannot be the goal at all."""
    homes = tables().homes(layout, obj)
    if obj in tables().fixed or not homes:
        return []
    if kind == "look":
        return [_LAMP] if tables().homes(layout, _LAMP) else []
    flag, machine = _PROCESS.get(kind, ("", ""))
    if flag and obj not in tables().flags[flag]:
        return []
    refused = _NEVER_TARGETS | {machine}
    fitting = [each for each in layout.kinds if each not in refused and tables().can_contain(each, obj)]
    return [each for each in fitting if flag or set(homes) - {each}]


class _Walk:
    """The shortest straightforward solution, by one who knows where everything is."""

    def __init__(self, layout: Room, items: list[Item]) -> None:
        self.layout = layout
        self.items = items
        ids = [each.id for each in layout.receptacles] + [item.id for item in items]
        self.names = pddl.names(ids)
        self.here = layout.start
        self.opened: set[str] = set()
        self.commands: list[str] = []

    def solve(self, goal: _Goal, rng: random.Random) -> list[str]:
        objects = [item for item in self.items if item.kind == goal.obj and item.receptacle]
        rng.shuffle(objects)
        if goal.type == "look":
            lamp = next(item for item in self.items if item.kind == goal.target)
            self._take(objects[0])
            self._go(_home(lamp))
            self.commands.append(f"use {self.names[lamp.id]}")
            return self.commands
        target = rng.choice(self._all(goal.target))
        for item in objects[: 2 if goal.type == "two" else 1]:
            self._take(item)
            if goal.type in _PROCESS:
                self._process(goal.type, item)
            self._go(target)
            self._open(target)
            self.commands.append(f"move {self.names[item.id]} to {self.names[target.id]}")
        return self.commands

    def _all(self, kind: str) -> list[Receptacle]:
        return [each for each in self.layout.receptacles if each.kind == kind]

    def _take(self, item: Item) -> None:
        home = _home(item)
        self._go(home)
        self._open(home)
        self.commands.append(f"take {self.names[item.id]} from {self.names[home.id]}")

    def _process(self, verb: str, item: Item) -> None:
        machine = self._all(_PROCESS[verb][1])[0]
        self._go(machine)
        self.commands.append(f"{verb} {self.names[item.id]} with {self.names[machine.id]}")

    def _go(self, receptacle: Receptacle) -> None:
        if receptacle.location != self.here:
            self.commands.append(f"go to {self.names[receptacle.id]}")
            self.here = receptacle.location

    def _open(self, receptacle: Receptacle) -> None:
        if receptacle.kind in tables().openable and receptacle.id not in self.opened:
            self.commands.append(f"open {self.names[receptacle.id]}")
            self.opened.add(receptacle.id)


def _home(item: Item) -> Receptacle:
    assert item.receptacle is not None, f"{item.id} lies nowhere"
    return item.receptacle
