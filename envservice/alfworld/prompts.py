"""The two ALFWorld prompts, with the parser of their answers.

`full` has the fields, order and quoting of the paper's pipeline; `compact` says the same in a tenth of the words, for
models of less than a million parameters. Answers to both have the form `<think>...</think><action>...</action>`,
and the same rule reads them, so that "invalid" means the same everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from envservice.base import Outcome, ParsedAction, Turn, recent
from envservice.text.response_format import read_lowered

TASK = "Your task is to: "
"""The text before the task sentence in the first observation."""


def task_of(first: Outcome) -> str:
    """Returns the task sentence with its full stop, or "" if the observation has none."""
    return first.observation.partition(TASK)[2].strip()


def choices(now: Outcome) -> list[str]:
    """Returns the admissible actions that prompts show: all except `help`."""
    return [action for action in now.admissible_actions if action != "help"]


class AlfworldFullTemplate:
    """One user message per turn: role, task, recent observations with actions, current observation, choices."""

    name = "full"
    chat = True

    def __init__(self, history: int = 2) -> None:
        self.history = history

    def render(self, first: Outcome, turns: Sequence[Turn], now: Outcome) -> str:
        """Renders the prompt. The first turn shows no task line and no history; so do all turns if `history` is 0."""
        actions = "\n ".join(f"'{action}'" for action in choices(now))
        if turns and self.history:
            opening = self._with_history(first, turns, now)
        else:
            opening = f"{ROLE}\nYour current observation is: {now.observation}\n"
        return f"{opening}Your admissible actions of the current situation are: [{actions}].\n\n{_INSTRUCTION}"

    def _with_history(self, first: Outcome, turns: Sequence[Turn], now: Outcome) -> str:
        shown = recent(turns, self.history)
        start = len(turns) - len(shown) + 1
        past = "\n".join(
            f"[Observation {step}: '{turn.observation}', Action {step}: '{turn.action}']"
            for step, turn in enumerate(shown, start=start)
        )
        return (
            f"{ROLE} {TASK}{task_of(first)}\n"
            f"Prior to this step, you have already taken {len(turns)} step(s). Below are the most recent {len(shown)} "
            f"observations and the corresponding actions you took: {past}\n"
            f"You are now at step {len(turns) + 1} and your current observation is: {now.observation}\n"
        )

    def parse(self, text: str) -> ParsedAction:
        return read_lowered(text)


ROLE = "You are an expert agent operating in the ALFRED Embodied Environment."
_INSTRUCTION = (
    "It is your turn to act.\n"
    "First reason step by step about the current situation; this reasoning MUST be enclosed within <think> </think> "
    "tags.\n"
    "Then choose one admissible action for the current step and present it within <action> </action> tags."
)


class AlfworldCompactTemplate:
    """Six lines of raw text: task, recent actions, observation, actions here, places seen, places not yet seen.

    Objects to take and places to go to are listed by kind ("drawer 1 2 4"), which halves the length. Actions that never
    help (examine, inventory, look) are left out. Inadmissible actions are marked as failed: "Nothing happens." leaves
    no other trace, and without the mark a model believes that its action succeeded.
    """

    name = "compact"
    chat = False

    def __init__(self, history: int = 3) -> None:
        self.history = history

    def render(self, first: Outcome, turns: Sequence[Turn], now: Outcome) -> str:
        done = "; ".join(turn.action + ("" if turn.admissible else " failed") for turn in recent(turns, self.history))
        been = {turn.action for turn in turns if turn.admissible}
        going = [action for action in choices(now) if action.startswith(_GO)]
        return (
            f"Task: {task_of(first).removesuffix('.')}\nDone: {done or '-'}\n"
            f"Now: {_without_banner(now.observation)}\nActions: {_here(choices(now))}\n"
            f"Seen: {_by_kind(action.removeprefix(_GO) for action in going if action in been)}\n"
            f"New: {_by_kind(action.removeprefix(_GO) for action in going if action not in been)}\n"
        )

    def parse(self, text: str) -> ParsedAction:
        return read_lowered(text)


_GO = "go to "
_TAKE = re.compile(r"take (.+) from (.+)")
_IDLE = ("examine ", "inventory", "look")


def _here(actions: Sequence[str]) -> str:
    """Lists the actions at this place: objects to take by receptacle and kind, then the other actions in full."""
    takes: dict[str, list[str]] = {}
    rest: list[str] = []
    for action in actions:
        if match := _TAKE.fullmatch(action):
            takes.setdefault(match[2], []).append(match[1])
        elif not action.startswith((_GO, *_IDLE)):
            rest.append(action)
    return "; ".join([*(f"take from {place}: {_by_kind(things)}" for place, things in takes.items()), *rest]) or "-"


def _by_kind(names: Iterable[str]) -> str:
    """Joins drawer 2, shelf 1, drawer 1 to `drawer 1 2, shelf 1`. Returns a dash for no place."""
    kinds: dict[str, list[str]] = {}
    for name in names:
        kind, _, number = name.rpartition(" ")
        kinds.setdefault(kind, []).append(number)
    return ", ".join(" ".join([kind, *sorted(numbers, key=lambda n: (len(n), n))])
                     for kind, numbers in kinds.items()) or "-"


def _without_banner(observation: str) -> str:
    """Removes banner, task and list of receptacles from the first observation. The choices repeat the list."""
    if TASK not in observation:
        return observation.strip()
    room = observation.partition(TASK)[0].strip().rpartition("\n\n")[2]
    return room.partition(". ")[0] + "."
