"""The kinds of action for prompts: RLVMR's list, which is the same under all simplifications."""

from __future__ import annotations

MEANINGS: dict[str, str] = {
    "open OBJ": "open a container or a door",
    "close OBJ": "close a container or a door",
    "activate OBJ": "switch a device on",
    "deactivate OBJ": "switch a device off",
    "connect OBJ to OBJ": "connect electrical parts",
    "disconnect OBJ": "disconnect an electrical part",
    "use OBJ [on OBJ]": "use a device or a tool",
    "look around": "describe the place you are in",
    "look at OBJ": "describe an object",
    "look in OBJ": "describe what a container holds",
    "read OBJ": "read a note or a book",
    "move OBJ to OBJ": "move an object into a container",
    "pick up OBJ": "take an object into the inventory",
    "put down OBJ": "drop an object of the inventory",
    "pour OBJ into OBJ": "pour a liquid into a container",
    "dunk OBJ into OBJ": "dip a container into a liquid",
    "mix OBJ": "mix chemically what a container holds",
    "go to LOC": "go to a neighbouring place",
    "eat OBJ": "eat something",
    "flush OBJ": "flush a toilet",
    "focus on OBJ": "signal that this is the object which the task asks about",
    "wait": "let ten steps of time pass",
    "wait1": "let one step of time pass",
    "task": "describe the task again",
    "inventory": "list what you carry",
}
"""Kinds of action with their meanings. OBJ and LOC stand for names."""
