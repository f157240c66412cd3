"""The six goals of ALFWorld, recognised by the shape of a game's PDDL goal.

Every other goal (sliced objects, movable receptacles) is refused, because a goal must not be guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

TaskType = Literal["pick", "look", "clean", "heat", "cool", "two"]
TASK_TYPES: tuple[TaskType, ...] = ("pick", "look", "clean", "heat", "cool", "two")


class UnknownGoal(ValueError):
    """The goal has none of the six shapes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlfworldGoal:
    """The condition of a win."""

    type: TaskType
    object_type: str
    """Type of the object to find, such as `mugtype`."""
    target_type: str
    """Type of the receptacle that it must be in. For `look`, the type of the lamp."""
    able: str = ""
    """The ability that clean, heat or cool needs: `cleanable`, `heatable` or `coolable`. Else empty."""
    made: str = ""
    """The state that the object must reach: `isclean`, `ishot` or `iscool`. Else empty."""


_PLACED = "(objecttype ?o OBJECT) (receptacletype ?r TARGET)"
_PICK = f"(:goal (and (exists (?r - receptacle) (exists (?o - object) (and (inreceptacle ?o ?r) {_PLACED})))))"
_MADE = (
    "(:goal (and (exists (?r - receptacle) (exists (?o - object)"
    f" (and (ABLE ?o) {_PLACED} (MADE ?o) (inreceptacle ?o ?r))))))"
)
_TWO = (
    "(:goal (and (exists (?r - receptacle) (exists (?o1 - object)"
    " (and (objecttype ?o1 OBJECT) (receptacletype ?r TARGET) (inreceptacle ?o1 ?r)"
    " (exists (?o2 - object) (and (not (= ?o1 ?o2))"
    " (objecttype ?o2 OBJECT) (receptacletype ?r TARGET) (inreceptacle ?o2 ?r))))))))"
)
_LOOK = (
    "(:goal (and (exists (?ot - object ?r - receptacle ?a - agent ?l - location)"
    " (and (objecttype ?ot TARGET) (toggleable ?ot) (istoggled ?ot)"
    " (receptacleatlocation ?r ?l) (atlocation ?a ?l) (inreceptacle ?ot ?r)))"
    " (exists (?o - object ?a - agent) (and (objecttype ?o OBJECT) (holds ?a ?o)))))"
)
_MAKING: dict[TaskType, tuple[str, str]] = {
    "clean": ("cleanable", "isclean"),
    "heat": ("heatable", "ishot"),
    "cool": ("coolable", "iscool"),
}


def _tokens(text: str) -> str:
    return " ".join(re.findall(r"[()]|[^\s()]+", text))


def _pattern(shape: str) -> re.Pattern[str]:
    seen: set[str] = set()

    def field(match: re.Match[str]) -> str:
        name = match[0]
        if name in seen:
            return f"(?P={name})"
        seen.add(name)
        return f"(?P<{name}>[^ ()]+)"

    return re.compile(re.sub("OBJECT|TARGET", field, re.escape(_tokens(shape))))


_SHAPES: dict[TaskType, re.Pattern[str]] = {
    "pick": _pattern(_PICK),
    "look": _pattern(_LOOK),
    "two": _pattern(_TWO),
    **{kind: _pattern(_MADE.replace("ABLE", able).replace("MADE", made)) for kind, (able, made) in _MAKING.items()},
}


def parse_goal(text: str) -> AlfworldGoal:
    """Reads `(:goal ...)` in lower case. Text after its closing bracket is ignored. Raises UnknownGoal."""
    tokens = _tokens(text)
    for kind, shape in _SHAPES.items():
        match = shape.match(tokens)
        if match:
            able, made = _MAKING.get(kind, ("", ""))
            return AlfworldGoal(type=kind, object_type=match["OBJECT"], target_type=match["TARGET"], able=able,
                                made=made)
    raise UnknownGoal(f"the game's goal has none of the six known shapes: {tokens[:80]}...")
