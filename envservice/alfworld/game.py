"""One game of ALFWorld: the content of a `game.tw-pddl` file. All its sessions share it, and none changes it.

Legend: o object id, r receptacle id, l location id; ids are the lower-case PDDL names. Text lists several objects or
receptacles in the order of their ids.

The rules and sentences of engine.py are those of the two PDDL domains and grammars that are in use, so a file with
another one raises UnknownGame. So does a game whose goal has none of the six known shapes (sliced objects, movable
receptacles), because a goal must not be guessed. Costs and distances are not read, because nothing here plans.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from services.errors import EnvFault

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


Fact = tuple[str, str, str]
"""A predicate with one or two arguments. The second is empty if there is only one."""


class UnknownGame(EnvFault):
    """The game is damaged, or this engine does not know its domain, grammar or goal."""


class OldGame(UnknownGame):
    """A game with the domain or the grammar of another version, as alfworld before 0.4 downloaded it."""


_DOMAINS = {
    # Every official game file: clean at a sink basin or at a sink.
    "aa9f94c3b34d621a": frozenset({"sinkbasintype", "sinktype"}),
    # The domain that alfworld 0.4.2 installs and `alfworld-generate` writes: clean at a sink basin only.
    "89f153e455daa02a": frozenset({"sinkbasintype"}),
}
_GRAMMARS = {"2cd9a6f8448561a7", "798af78a8bae74ee"}

_TASK = re.compile(r'"Your task is to: ([^"]*)"')
_NOT_PLAIN = re.compile(r'[\\;|<>\[\]#{}\t]')
"""Characters that the shipped engine's grammar would interpret instead of printing."""
_FACT = re.compile(r"\(\s*([^\s()]+)\s+([^\s()]+)(?:\s+([^\s()]+))?\s*\)")

_UNARY = {
    "openable", "opened", "pickupable", "cleanable", "heatable", "coolable", "toggleable", "sliceable",
    "isreceptacleobject", "isclean", "ishot", "iscool", "issliced", "istoggled",
}
_BINARY = {
    "atlocation", "receptacleatlocation", "objectatlocation", "inreceptacle", "inreceptacleobject",
    "receptacletype", "objecttype", "cancontain",
}
_INERT = {"checked", "examined", "moveable", "full", "isreceptacleobjectfull", "wasinreceptacle", "ison"}
"""Predicates that influence no command, sentence or goal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Game:
    """The parts of a game that no action changes, and its first state."""

    task: str
    """The sentence "Your task is to: ...", which the reset prints."""
    goal: AlfworldGoal
    names: Mapping[str, str]
    """id -> the name for the player, such as `mug 2`."""
    receptacles: tuple[str, ...]
    """All receptacles, in the order of their ids."""
    location_of: Mapping[str, str]
    """r -> l."""
    receptacles_at: Mapping[str, tuple[str, ...]]
    """l -> the receptacles within reach there."""
    receptacle_type: Mapping[str, str]
    object_type: Mapping[str, str]
    can_contain: frozenset[tuple[str, str]]
    """(receptacle type, object type)."""
    targets: tuple[str, ...]
    """The receptacles of the goal's type."""
    cleaners: frozenset[str]
    """Receptacle types that clean."""
    traits: Mapping[str, frozenset[str]]
    """Predicate of one argument -> the ids for which it holds at the start. Abilities hold always."""
    inside: Mapping[str, tuple[str, ...]]
    """o that holds things -> the objects in it (they never move)."""
    contents: Mapping[str, tuple[str, ...]]
    """r -> objects in or on it at the start; an object may be in several."""
    object_locations: Mapping[str, frozenset[str]]
    """o -> the locations where it can be sliced, and be seen on the floor, at the start."""
    start: str
    """l of the agent at the start."""
    travel: Mapping[str, tuple[str, str, str]]
    """`go to <receptacle>` -> its command, for every receptacle."""

    def has(self, trait: str, entity: str) -> bool:
        """Returns whether the entity has the trait at the start."""
        return entity in self.traits[trait]


def parse_game(data: Mapping[str, object]) -> Game:
    """Makes the game of a parsed `game.tw-pddl` file. Raises UnknownGame."""
    try:
        domain, grammar, problem = (str(data[key]) for key in ("pddl_domain", "grammar", "pddl_problem"))
    except KeyError as error:
        raise UnknownGame(f"the game has no key {error}") from error
    cleaners = _cleaners(domain)
    task = _task(grammar)
    facts, goal = _parse_problem(problem)
    return _build(facts, goal, task, cleaners)


def load_game(text: str | bytes) -> Game:
    """Makes the game of a file's text. Raises UnknownGame."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnknownGame(f"the game file is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise UnknownGame("the game file is not a JSON object")
    return parse_game(data)


def _fingerprint(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@lru_cache(maxsize=8)
def _cleaners(domain: str) -> frozenset[str]:
    try:
        return _DOMAINS[_fingerprint(domain)]
    except KeyError:
        raise OldGame("the game's PDDL domain is not the one of ALFWorld 0.4") from None


@lru_cache(maxsize=8)
def _check_grammar(grammar: str) -> None:
    if _fingerprint(grammar) not in _GRAMMARS:
        raise OldGame("the game's grammar is not the one of ALFWorld 0.4")


def _task(grammar: str) -> str:
    match = _TASK.search(grammar)
    if not match:
        raise UnknownGame("the game's grammar states no task")
    sentence = match.group(1)
    if _NOT_PLAIN.search(sentence):
        raise UnknownGame(f"the game's task is not plain text: {sentence!r}")
    _check_grammar(grammar[: match.start(1)] + grammar[match.end(1) :])
    return f"Your task is to: {sentence}"


def _parse_problem(problem: str) -> tuple[list[Fact], AlfworldGoal]:
    text = problem.lower()
    if ";" in text:
        text = re.sub(r";[^\n]*", "", text)
    init, goal = text.find("(:init"), text.find("(:goal")
    if not 0 < init < goal:
        raise UnknownGame("the game's PDDL problem lacks its initial state or its goal")
    section = text[init + 6 : goal]
    facts: list[Fact] = _FACT.findall(section)
    if section.count("(") != len(facts):
        raise UnknownGame("the game's initial state holds something other than facts of one or two arguments")
    try:
        return facts, parse_goal(text[goal:])
    except UnknownGoal as error:
        raise UnknownGame(str(error)) from error


def _build(facts: list[Fact], goal: AlfworldGoal, task: str, cleaners: frozenset[str]) -> Game:
    by_predicate: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for predicate, first, second in facts:
        by_predicate[predicate].add((first, second))
    unknown = by_predicate.keys() - _UNARY - _BINARY - _INERT
    if unknown:
        raise UnknownGame(f"the game's initial state has an unknown predicate: {min(unknown)}")
    location_of = _only(by_predicate["receptacleatlocation"], "locations")
    receptacle_type = _only(by_predicate["receptacletype"], "types")
    agent = _only(by_predicate["atlocation"], "locations")
    if len(agent) != 1:
        raise UnknownGame("the game needs exactly one agent")
    names = _names({entity for _, *pair in facts for entity in pair if entity})
    return Game(
        task=task,
        goal=goal,
        names=names,
        receptacles=tuple(sorted(location_of)),
        location_of=location_of,
        receptacles_at=_group((place, r) for r, place in location_of.items()),
        receptacle_type=receptacle_type,
        object_type=_only(by_predicate["objecttype"], "types"),
        targets=tuple(sorted(r for r, kind in receptacle_type.items() if kind == goal.target_type)),
        can_contain=frozenset(by_predicate["cancontain"]),
        cleaners=cleaners,
        traits={trait: frozenset(entity for entity, _ in by_predicate[trait]) for trait in _UNARY},
        inside=_group((outer, inner) for inner, outer in by_predicate["inreceptacleobject"]),
        contents=dict.fromkeys((*location_of, *receptacle_type), ())
        | _group((r, o) for o, r in by_predicate["inreceptacle"]),
        object_locations={o: frozenset(ls) for o, ls in _group(by_predicate["objectatlocation"]).items()},
        start=next(iter(agent.values())),
        travel={f"go to {names[r]}": ("go", r, "") for r in sorted(location_of)},
    )


def _only(pairs: set[tuple[str, str]], noun: str) -> dict[str, str]:
    single = dict(sorted(pairs))
    if len(single) != len(pairs):
        raise UnknownGame(f"something in the game has two {noun}")
    return single


def _group(pairs: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    members: dict[str, list[str]] = defaultdict(list)
    for key, member in sorted(pairs):
        members[key].append(member)
    return {key: tuple(value) for key, value in members.items()}


def _names(entities: set[str]) -> dict[str, str]:
    """id -> `<type> <n>`. Ids of one type are numbered downwards, so the smallest id has the largest number."""
    ids = sorted(entities)
    kinds = {entity: _kind(entity) for entity in ids}
    left = Counter(kind for kind in kinds.values() if kind)
    names: dict[str, str] = {}
    for entity in ids:
        kind = kinds[entity]
        # An id without coordinates keeps its entire text and a space where the number would be.
        names[entity] = f"{kind} {left[kind]}" if kind else f"{_unescape(entity)} "
        left[kind] -= 1
    return names


def _kind(entity: str) -> str:
    kind, bar, _ = entity.partition("_bar_")
    if not bar:
        return ""
    return _unescape(kind) + ("basin" if "basin" in entity else "")


def _unescape(text: str) -> str:
    for word, sign in (("_minus_", "-"), ("_plus_", "+"), ("_dot_", "."), ("_comma_", ",")):
        text = text.replace(word, sign)
    return text
