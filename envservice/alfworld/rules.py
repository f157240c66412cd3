"""The rules of ALFWorld: the commands that a state admits, their effects, and the condition of a win.

Some rules look odd, but equal the reference on purpose: only a held object can be examined; heating, cooling, cleaning
and switching on need no open door; the agent cannot go to its own place; all receptacles of one location are within
reach together; a lamp never goes off; an object in a closed receptacle can be sliced.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping

from envservice.alfworld.game import Game

Command = tuple[str, str, str]
"""A verb with up to two ids, which are (object, receptacle) if there are two."""

_PLAIN: dict[str, Command] = {verb: (verb, "", "") for verb in ("help", "inventory", "look")}
_KNIVES = {"knifetype", "butterknifetype"}
_APPLIANCES = {"microwavetype": ("heat", "heatable"), "fridgetype": ("cool", "coolable")}
_MAKES = {"clean": "isclean", "heat": "ishot", "cool": "iscool", "slice": "issliced", "use": "istoggled"}
_UNMAKES = {"heat": "iscool", "cool": "ishot"}


class WorldState:
    """The state that actions change. Values are replaced, never changed in place: sessions share the first state."""

    __slots__ = ("contents", "game", "held", "left", "location", "object_locations", "opened", "traits")

    def __init__(self, game: Game) -> None:
        self.game = game
        self.location = game.start
        self.held = ""
        """Id of the carried object. The agent carries one at a time."""
        self.contents = dict(game.contents)
        self.object_locations = dict(game.object_locations)
        self.opened = game.traits["opened"]
        self.traits = {trait: game.traits[trait] for trait in _MAKES.values()}
        self.left: dict[str, frozenset[str]] = {}
        """o -> the receptacles from which it was taken and into which it was not put back."""

    @property
    def here(self) -> tuple[str, ...]:
        """Returns the receptacles within reach."""
        return self.game.receptacles_at.get(self.location, ())

    def reachable(self, receptacle: str) -> bool:
        """Says whether the receptacle is open or has no door."""
        return receptacle in self.opened or receptacle not in self.game.traits["openable"]


def commands(state: WorldState) -> dict[str, Command]:
    """Returns all admissible commands, unsorted: the text that a player types -> its command."""
    game, here = state.game, state.here
    commands = _PLAIN | {
        text: command for text, command in game.travel.items() if game.location_of[command[1]] != state.location
    }
    for receptacle in here:
        name = game.names[receptacle]
        commands[f"examine {name}"] = ("examine", receptacle, "")
        if game.has("openable", receptacle):
            verb = "close" if receptacle in state.opened else "open"
            commands[f"{verb} {name}"] = (verb, receptacle, "")
        for item in state.contents[receptacle]:
            if game.has("toggleable", item):
                commands[f"use {game.names[item]}"] = ("use", item, "")
        if state.held:
            commands |= _with_held(state, receptacle)
        elif state.reachable(receptacle):
            for item in state.contents[receptacle]:
                if game.has("pickupable", item):
                    commands[f"take {game.names[item]} from {name}"] = ("take", item, receptacle)
    if state.held:
        commands[f"examine {game.names[state.held]}"] = ("examine", "", state.held)
        if game.object_type.get(state.held) in _KNIVES:
            commands |= _slicing(state)
    return commands


def _with_held(state: WorldState, receptacle: str) -> dict[str, Command]:
    game, held = state.game, state.held
    kind, name, item = game.receptacle_type.get(receptacle, ""), game.names[receptacle], game.names[held]
    commands: dict[str, Command] = {}
    if state.reachable(receptacle) and (kind, game.object_type.get(held, "")) in game.can_contain:
        commands[f"move {item} to {name}"] = ("move", held, receptacle)
    if kind in _APPLIANCES:
        verb, able = _APPLIANCES[kind]
        if game.has(able, held):
            commands[f"{verb} {item} with {name}"] = (verb, held, receptacle)
    if kind in game.cleaners and game.has("cleanable", held):
        commands[f"clean {item} with {name}"] = ("clean", held, receptacle)
    return commands


def _slicing(state: WorldState) -> dict[str, Command]:
    game, knife = state.game, state.held
    return {
        f"slice {game.names[item]} with {game.names[knife]}": ("slice", item, knife)
        for item in game.traits["sliceable"]
        if state.location in state.object_locations.get(item, ())
    }


def apply(state: WorldState, command: Command) -> None:
    """Changes the state by an admissible command."""
    verb, first, second = command
    match verb:
        case "go":
            state.location = state.game.location_of[first]
        case "open":
            state.opened |= {first}
        case "close":
            state.opened -= {first}
        case "take":
            _take(state, first, second)
        case "move":
            _move(state, first, second)
        case _ if verb in _MAKES:
            state.traits[_MAKES[verb]] |= {first}
            if verb in _UNMAKES:
                state.traits[_UNMAKES[verb]] -= {first}


def digest(state: WorldState) -> str:
    """Returns 32 hexadecimal digits of everything that later commands, sentences and the goal depend on."""
    def pairs(held: Mapping[str, Iterable[str]]) -> list[tuple[str, list[str]]]:
        return sorted((name, sorted(ids)) for name, ids in held.items() if ids)

    facts = [state.location, state.held, sorted(state.opened), pairs(state.contents), pairs(state.object_locations),
             pairs(state.traits), pairs(state.left)]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def _take(state: WorldState, item: str, receptacle: str) -> None:
    state.held = item
    state.contents[receptacle] = tuple(o for o in state.contents[receptacle] if o != item)
    state.object_locations[item] = state.object_locations.get(item, frozenset()) - {state.location}
    state.left[item] = state.left.get(item, frozenset()) | {receptacle}


def _move(state: WorldState, item: str, receptacle: str) -> None:
    state.held = ""
    state.contents[receptacle] = tuple(sorted({*state.contents[receptacle], item}))
    state.object_locations[item] = state.object_locations.get(item, frozenset()) | {state.location}
    state.left[item] = state.left.get(item, frozenset()) - {receptacle}


def won(state: WorldState) -> bool:
    """Says whether the goal holds."""
    game, goal = state.game, state.game.goal
    if goal.type == "look":
        held_right = state.held and game.object_type.get(state.held) == goal.object_type
        return bool(held_right) and any(_lit(state, item) for r in state.here for item in state.contents[r])
    needed = 2 if goal.type == "two" else 1
    return any(
        sum(_counts(state, item) for item in state.contents[receptacle]) >= needed
        for receptacle in game.targets
    )


def _lit(state: WorldState, item: str) -> bool:
    game = state.game
    right = game.object_type.get(item) == game.goal.target_type and game.has("toggleable", item)
    return right and item in state.traits["istoggled"]


def _counts(state: WorldState, item: str) -> bool:
    game, goal = state.game, state.game.goal
    if game.object_type.get(item) != goal.object_type:
        return False
    return not goal.able or (game.has(goal.able, item) and item in state.traits[goal.made])
