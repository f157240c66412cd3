"""What can be said to the simulator: its templates, and what they mean, for prompts and admissible lists."""

from __future__ import annotations

MEANINGS: dict[str, str] = {
    "open <object>": "open a container or a door",
    "close <object>": "close a container or a door",
    "activate <object>": "switch a device on",
    "deactivate <object>": "switch a device off",
    "connect <object> to <object>": "connect electrical parts",
    "disconnect <object>": "disconnect an electrical part",
    "use <object>": "use a device or a tool",
    "use <object> on <object>": "use a device or a tool on something",
    "look around": "describe the place you are in",
    "look at <object>": "describe an object",
    "look in <object>": "describe what a container holds",
    "read <object>": "read a note or a book",
    "move <object> to <object>": "move an object into a container",
    "pick up <object>": "take an object into the inventory",
    "put down <object>": "drop an object of the inventory",
    "pour <object> into <object>": "pour a liquid into a container",
    "dunk <object> into <object>": "dip a container into a liquid",
    "mix <object>": "mix chemically what a container holds",
    "go to <place>": "go to a neighbouring place",
    "eat <object>": "eat something",
    "flush <object>": "flush a toilet",
    "focus on <object>": "signal that this is the object which the task asks about",
    "wait": "let ten steps of time pass",
    "wait1": "let one step of time pass",
    "task": "describe the task again",
    "inventory": "list what you carry",
}
TEMPLATES: list[str] = sorted(MEANINGS)
"""As admissible lists have them: words in brackets stand for a name from `info["objects"]`."""
