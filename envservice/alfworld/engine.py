"""Our engine of ALFWorld: the rules, the sentences that the player reads, and a session of one game.

It answers character by character as `AlfredDemangler(PddlEnv(infos), shuffle=False)` of alfworld 0.4.2 with
textworld 1.7.0 does, which tests/parity/alfworld checks. A session is a small state over a shared game, and a step
takes tens of microseconds. A session is not thread-safe; sessions are independent.

Some rules look odd, but are those of the reference: only a held object can be examined; heating, cooling, cleaning and
switching on need no open door; the agent cannot go to its own place; all receptacles of one location are within reach
together; a lamp never goes off; an object in a closed receptacle can be sliced.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping

from envservice.alfworld.game import Game
from envservice.base import Outcome

VERSION = "1"
"""Raise it whenever a text, a command list or a reward changes."""
Command = tuple[str, str, str]
"""A verb with up to two ids; an id that is left out is empty. Two ids are (object, receptacle), or (object, knife) for
`slice`. `examine` has either a receptacle as its first id or the held object as its second."""

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
        """Returns whether the receptacle is open or has no door."""
        return receptacle in self.opened or receptacle not in self.game.traits["openable"]


def admissible_commands(state: WorldState) -> dict[str, Command]:
    """Returns all admissible commands, unsorted: the player's text -> its command."""
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


def apply_command(state: WorldState, command: Command) -> None:
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


def state_digest(state: WorldState) -> str:
    """Returns 32 hexadecimal digits of everything that later commands, sentences and the goal depend on."""
    def pairs(ids_by_name: Mapping[str, Iterable[str]]) -> list[tuple[str, list[str]]]:
        return sorted((name, sorted(ids)) for name, ids in ids_by_name.items() if ids)

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


def is_won(state: WorldState) -> bool:
    """Returns whether the goal holds."""
    game, goal = state.game, state.game.goal
    if goal.type == "look":
        holds_object = state.held and game.object_type.get(state.held) == goal.object_type
        return bool(holds_object) and any(_lit(state, item) for r in state.here for item in state.contents[r])
    needed = 2 if goal.type == "two" else 1
    return any(
        sum(_counts(state, item) for item in state.contents[receptacle]) >= needed
        for receptacle in game.targets
    )


def _lit(state: WorldState, item: str) -> bool:
    game = state.game
    is_target = game.object_type.get(item) == game.goal.target_type and game.has("toggleable", item)
    return is_target and item in state.traits["istoggled"]


def _counts(state: WorldState, item: str) -> bool:
    game, goal = state.game, state.game.goal
    if game.object_type.get(item) != goal.object_type:
        return False
    return not goal.able or (game.has(goal.able, item) and item in state.traits[goal.made])


# The sentences. Their source is the grammar of alfworld 0.4.2.

NOTHING_HAPPENS = "Nothing happens."
"""The answer to every command that is not admissible."""

_WELCOME = "-= Welcome to TextWorld, ALFRED! =-"
_HELP = """\
Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""

_ANSWERS = {
    "help": _HELP,
    "close": "You close the {}.",
    "take": "You pick up the {} from the {}.",
    "move": "You move the {} to the {}.",
    "use": "You turn on the {}.",
    "heat": "You heat the {} using the {}.",
    "clean": "You clean the {} using the {}.",
    "cool": "You cool the {} using the {}.",
    "slice": "You sliced the {} with the {}.",
}
"""Verb -> answer, with places for the names of the command's two ids."""

_CONDITIONS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("isclean", "ishot", "issliced"), "This is a hot and clean sliced {}."),
    (("isclean", "iscool", "issliced"), "This is a cool and clean sliced {}."),
    (("isclean", "issliced"), "This is a clean sliced {}."),
    (("ishot", "issliced"), "This is a hot sliced {}."),
    (("iscool", "issliced"), "This is a cool sliced {}."),
    (("isclean", "ishot"), "This is a hot and clean {}."),
    (("isclean", "iscool"), "This is a cool and clean {}."),
    (("ishot",), "This is a hot {}."),
    (("isclean",), "This is a clean {}."),
    (("iscool",), "This is a cold {}."),
    (("toggleable", "istoggled"), "This {} is on."),
    (("sliceable", "issliced"), "This is a sliced {}."),
)
"""The answers to examine. The first line whose traits the object has is used."""


def introduction(state: WorldState) -> str:
    """Returns the text of a reset: banner, room, task."""
    game = state.game
    room = look(state) if state.here else _middle(game, game.receptacles)
    return f"{_WELCOME}\n\n{room}\n\n{game.task}"


def feedback(state: WorldState, command: Command) -> str:
    """Returns the answer to a command, in the state after it."""
    verb, first, second = command
    names = state.game.names
    match verb:
        case "go":
            return f"You arrive at {names[first]}. {examine_receptacle(state, first)}"
        case "open":
            return f"You open the {names[first]}. {examine_receptacle(state, first)}"
        case "examine":
            return examine_receptacle(state, first) if first else examine_object(state, second)
        case "look":
            return look(state)
        case "inventory":
            return inventory(state)
    return _ANSWERS[verb].format(names.get(first), names.get(second))


def look(state: WorldState) -> str:
    """Lists the receptacles here. If there is none, nothing is listed: only the reset lists the entire room."""
    game = state.game
    if not state.here:
        return _middle(game, ())
    facing = _join([game.names[receptacle] for receptacle in state.here])
    return f"You are facing the {facing}. Next to it, you see {_things(game, _on_the_floor(state))}."


def _on_the_floor(state: WorldState) -> Iterable[str]:
    """Lists objects put down here, each once for every receptacle here from which it was taken."""
    for item in sorted(state.left):
        if state.location in state.object_locations[item]:
            yield from (item for receptacle in state.here if receptacle in state.left[item])


def inventory(state: WorldState) -> str:
    """Names the carried object."""
    if not state.held:
        return "You are not carrying anything."
    return f"You are carrying: {_things(state.game, [state.held])}."


def examine_receptacle(state: WorldState, receptacle: str) -> str:
    """Lists the contents of a receptacle, unless it is closed."""
    game, name = state.game, state.game.names[receptacle]
    if not state.reachable(receptacle):
        return f"The {name} is closed."
    things = _things(game, state.contents[receptacle])
    if game.has("openable", receptacle):
        return f"The {name} is open. In it, you see {things}."
    return f"On the {name}, you see {things}."


def examine_object(state: WorldState, item: str) -> str:
    """Describes the state of an object, or its contents."""
    game, name = state.game, state.game.names[item]
    if game.has("isreceptacleobject", item):
        return f"This is a normal {name}. In it, you see {_things(game, game.inside.get(item, ()))}."
    for traits, sentence in _CONDITIONS:
        if all(item in state.traits.get(trait, game.traits[trait]) for trait in traits):
            return sentence.format(name)
    return f"There's nothing special about {name}."


def _middle(game: Game, receptacles: Iterable[str]) -> str:
    return f"You are in the middle of a room. Looking quickly around you, you see {_things(game, receptacles)}."


def _things(game: Game, entities: Iterable[str]) -> str:
    return _join([f"a {game.names[entity]}" for entity in entities])


def _join(names: list[str]) -> str:
    if not names:
        return "nothing"
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[:-1])}, and {names[-1]}"


class OwnSession:
    """One play of one game."""

    def __init__(self, game: Game, *, exact_state: bool = False) -> None:
        """`exact_state`: outcomes have the exact state's digest as `state`, which no real environment would reveal."""
        self._exact_state = exact_state
        self._state = WorldState(game)
        self._commands = admissible_commands(self._state)

    def reset(self) -> Outcome:
        self._state = WorldState(self._state.game)
        self._commands = admissible_commands(self._state)
        return self._outcome(introduction(self._state), started=False)

    def step(self, action: str) -> Outcome:
        command = self._commands.get(action.strip())
        if command is None:
            return self._outcome(NOTHING_HAPPENS, unchanged=True)
        apply_command(self._state, command)
        self._commands = admissible_commands(self._state)
        return self._outcome(feedback(self._state, command))

    def _outcome(self, observation: str, *, started: bool = True, unchanged: bool = False) -> Outcome:
        won = is_won(self._state)
        return Outcome(
            observation=observation,
            admissible_actions=sorted(self._commands),
            reward=float(won and started),
            done=won and started,
            won=won,
            state=state_digest(self._state) if self._exact_state else "",
            unchanged=unchanged,
        )
