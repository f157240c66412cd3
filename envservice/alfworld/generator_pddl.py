"""The official game format: domain, grammar with the goal sentence baked in, problem, and displayed names.

domain.pddl and grammar.twl2 are ALFWorld's text as every official game carries it (MIT licence, see NOTICE), so that
one engine serves official and generated games alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from envservice.alfworld.generator_rooms import Item, Receptacle, Room, tables

_PICK = """(exists (?r - receptacle)
    (exists (?o - object)
        (and
            (inReceptacle ?o ?r)
            (objectType ?o {obj}Type)
            (receptacleType ?r {target}Type))))"""
_MADE = """(exists (?r - receptacle)
    (exists (?o - object)
        (and
            (ABLE ?o)
            (objectType ?o {obj}Type)
            (receptacleType ?r {target}Type)
            (DONE ?o)
            (inReceptacle ?o ?r))))"""
_TWO = """(exists (?r - receptacle)
    (exists (?o1 - object)
        (and
            (objectType ?o1 {obj}Type)
            (receptacleType ?r {target}Type)
            (inReceptacle ?o1 ?r)
            (exists (?o2 - object)
                (and
                    (not (= ?o1 ?o2))
                    (objectType ?o2 {obj}Type)
                    (receptacleType ?r {target}Type)
                    (inReceptacle ?o2 ?r))))))"""
_LOOK = """(exists (?ot - object ?r - receptacle ?a - agent ?l - location)
    (and
        (objectType ?ot {target}Type)
        (toggleable ?ot)
        (isToggled ?ot)
        (receptacleAtLocation ?r ?l)
        (atLocation ?a ?l)
        (inReceptacle ?ot ?r)))
(exists (?o - object ?a - agent)
    (and
        (objectType ?o {obj}Type)
        (holds ?a ?o)))"""

GOALS = {
    "pick": _PICK,
    "clean": _MADE.replace("ABLE", "cleanable").replace("DONE", "isClean"),
    "heat": _MADE.replace("ABLE", "heatable").replace("DONE", "isHot"),
    "cool": _MADE.replace("ABLE", "coolable").replace("DONE", "isCool"),
    "two": _TWO,
    "look": _LOOK,
}
"""The conditions of the official games, in their order: an engine may know them by their shape."""
SENTENCES = {
    "pick": ("put a {obj} in {target}", "put some {obj} on {target}"),
    "clean": ("put a clean {obj} in {target}", "clean some {obj} and put it in {target}"),
    "heat": ("put a hot {obj} in {target}", "heat some {obj} and put it in {target}"),
    "cool": ("put a cool {obj} in {target}", "cool some {obj} and put it in {target}"),
    "two": ("put two {obj} in {target}", "find two {obj} and put them in {target}"),
    "look": ("look at {obj} under the {target}", "examine the {obj} with the {target}"),
}
# The domain names these types, so every problem must declare them.
_OBJECT_TYPES = ("KnifeType", "ButterKnifeType", "SinkType")
_RECEPTACLE_TYPES = ("SinkBasinType", "MicrowaveType", "FridgeType")


@cache
def domain() -> str:
    """The PDDL domain that every game carries."""
    return Path(__file__).with_name("domain.pddl").read_text(encoding="utf-8")


@cache
def _grammar() -> str:
    return Path(__file__).with_name("grammar.twl2").read_text(encoding="utf-8")


def grammar(sentence: str) -> str:
    """The text grammar with the goal sentence baked in."""
    return _grammar().replace("UNKNOWN GOAL", sentence)


def names(ids: Iterable[str]) -> dict[str, str]:
    """Displayed name of each id: `cabinet 3`. Numbers run downwards over the sorted lower-case ids of a kind."""
    groups: dict[str, list[str]] = defaultdict(list)
    for each in sorted(ids, key=str.lower):
        kind = each.lower().split("_bar_", 1)[0]
        groups[kind + "basin" if "basin" in each.lower() else kind].append(each)
    return {each: f"{kind} {len(group) - place}" for kind, group in groups.items() for place, each in enumerate(group)}


def problem(name: str, room: Room, items: Sequence[Item], goal: str) -> str:
    """The PDDL problem text; `goal` is the condition."""
    objects = "\n".join(f"        {line}" for line in _objects(room, items))
    facts = "\n".join(f"        ({fact})" for fact in _facts(room, items))
    indented = "\n".join(f"                {line}" for line in goal.splitlines())
    return (
        f"\n(define (problem {name})\n(:domain alfred)\n(:objects\n{objects}\n        )\n\n"
        f"(:init\n{facts}\n        )\n\n        (:goal\n            (and\n{indented}\n            )\n        )\n    )\n"
    )


def _objects(room: Room, items: Sequence[Item]) -> list[str]:
    locations = {room.start} | {each.location for each in room.receptacles} | {item.location for item in items}
    lines = ["agent1 - agent"]
    lines += [f"{kind} - otype" for kind in sorted({f"{item.kind}Type" for item in items}.union(_OBJECT_TYPES))]
    lines += [f"{kind} - rtype" for kind in sorted({f"{kind}Type" for kind in room.kinds}.union(_RECEPTACLE_TYPES))]
    lines += [f"{item.id} - object" for item in items]
    lines += [f"{receptacle.id} - receptacle" for receptacle in room.receptacles]
    return lines + [f"{location} - location" for location in sorted(locations)]


def _facts(room: Room, items: Sequence[Item]) -> list[str]:
    facts = [f"receptacleType {each.id} {each.kind}Type" for each in room.receptacles]
    facts += [f"objectType {item.id} {item.kind}Type" for item in items]
    facts += _affordances(room, {item.kind for item in items})
    facts += [f"openable {each.id}" for each in room.receptacles if each.kind in tables().openable]
    for item in items:
        facts += _item_facts(item, item.receptacle)
    facts.append(f"atLocation agent1 {room.start}")
    return facts + [f"receptacleAtLocation {each.id} {each.location}" for each in room.receptacles]


def _affordances(room: Room, kinds: set[str]) -> list[str]:
    return [
        f"canContain {receptacle}Type {kind}Type"
        for receptacle in room.kinds
        for kind in sorted(kinds)
        if tables().can_contain(receptacle, kind)
    ]


def _item_facts(item: Item, receptacle: Receptacle | None) -> list[str]:
    facts = [f"objectAtLocation {item.id} {item.location}"]
    if receptacle is None:
        return facts
    facts.append(f"inReceptacle {item.id} {receptacle.id}")
    if item.kind not in tables().fixed:
        facts.append(f"pickupable {item.id}")
    facts += [f"{flag} {item.id}" for flag, kinds in tables().flags.items() if item.kind in kinds]
    if item.cool:
        facts.append(f"isCool {item.id}")
    return facts
