"""The sentences that the player reads after a command. Their source is the grammar of alfworld 0.4.2."""

from __future__ import annotations

from collections.abc import Iterable

from envservice.alfworld.game import Game
from envservice.alfworld.rules import Command, WorldState

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
    """Lists the receptacles here. If there is none, nothing is listed; only the reset lists the whole room."""
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
