"""ScienceWorld's prompts, with the parsers of their answers.

`full` has the fields and order of RLVMR's pipeline. `compact` has the task, past actions, observation and objects in
few words. Their answers have the form `<think>...</think><action>...</action>`. `meta` and `compact-meta` are the same
with RLVMR's tagged answers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

from envservice.base import Outcome, ParsedAction, Turn, recent
from envservice.text.response_format import (
    TaggedAnswers,
    instruction,
    latest_answers,
    plan_line,
    plan_of,
    read_lowered,
)

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


TASK = "Your task is to "
UNKNOWN = "No known action matches that input."
"""The simulator's answer to an action that it does not understand."""


def task_of(first: Outcome) -> str:
    """Returns the task without its opening words."""
    return str(first.info.get("task", "")).strip().removeprefix(TASK)


def look_of(observation: str, first: Outcome) -> str:
    """Returns an observation without the task. Only the first observation begins with it."""
    return observation.removeprefix(str(first.info.get("task", ""))).strip()


def situation(first: Outcome, turns: Sequence[Turn], now: Outcome, *, history: int,
              answers: Sequence[str] = ()) -> list[str]:
    """Returns the parts of a full prompt up to the actions and objects. `answers`: parts after the past turns."""
    parts = [_ROLE, f"Your task is to: {task_of(first)}"]
    shown = recent(turns, history)
    if shown:
        past = "\n".join(
            f"[Observation {step}: '{look_of(turn.observation, first)}', Action {step}: '{turn.action}']"
            for step, turn in enumerate(shown, start=len(turns) - len(shown) + 1))
        parts.append(
            f"Prior to this step, you have already taken {len(turns)} step(s). Below are the most recent "
            f"{len(shown)} observations and the corresponding actions you took: {past}")
    parts += answers
    if shown:
        parts.append(f"You are now at step {len(turns) + 1}.")
    return [*parts, f"Your current observation is: {look_of(now.observation, first)}", *_offers(now)]


class ScienceworldFullTemplate:
    """One user message: role, task, recent steps, observation, the kinds of action, what is here, how to answer."""

    name = "full"
    chat = True

    def __init__(self, history: int = 2) -> None:
        self.history = history

    def render(self, first: Outcome, turns: Sequence[Turn], now: Outcome) -> str:
        """Renders the prompt. The first turn shows no past, and no turn does if `history` is 0."""
        return "\n".join([*situation(first, turns, now, history=self.history), "", _INSTRUCTION])

    def parse(self, text: str) -> ParsedAction:
        return read_lowered(text)


def _offers(now: Outcome) -> list[str]:
    if any("<object>" in action for action in now.admissible_actions):
        return [f"Here are the actions you may take: {_KINDS}", f"Objects that you can refer to: {now.info['objects']}"]
    actions = "\n ".join(f"'{action}'" for action in now.admissible_actions)
    return [f"Your admissible actions of the current situation are: [{actions}]."]


_ROLE = (
    "You are an expert agent operating in the ScienceWorld environment, which is a text-based virtual environment "
    "centered around accomplishing tasks from the elementary science curriculum.")
_KINDS = json.dumps([{"action": action, "description": meaning} for action, meaning in MEANINGS.items()])
_CHOOSE = "Then give one action, in the form of one of the above, within <action> </action> tags."
_INSTRUCTION = (
    "It is your turn to act.\n"
    "First reason step by step about the current situation; this reasoning MUST be enclosed within <think> </think> "
    f"tags.\n{_CHOOSE}")


class ScienceworldCompactTemplate:
    """Raw text of four lines: the task, recent actions, the observation, the names of objects here. For instance

        Task: find a(n) plant. First, focus on the thing. Then, move it to the red box in the kitchen.
        Done: go to greenhouse; look around
        Now: This room is called the greenhouse. In it, you see: the agent; a substance called air; a bee hive; [...]
        Here: agent; air; bee hive; flower pot 2; [...]

    An action that was not understood is marked as failed.
    """

    name = "compact"
    chat = False

    def __init__(self, history: int = 6) -> None:
        self.history = history

    def render(self, first: Outcome, turns: Sequence[Turn], now: Outcome) -> str:
        led_to = [*(turn.observation for turn in turns[1:]), now.observation] if turns else []
        done = [turn.action + (" failed" if after == UNKNOWN else "")
                for turn, after in zip(turns, led_to, strict=True)]
        shown = done[max(0, len(done) - self.history) :]
        return (
            f"Task: {task_of(first)}\nDone: {'; '.join(shown) or '-'}\n"
            f"Now: {_one_line(look_of(now.observation, first))}\nHere: {now.info['objects']}\n")

    def parse(self, text: str) -> ParsedAction:
        return read_lowered(text)


def _one_line(text: str) -> str:
    """Joins the lines of a text into one: the simulator prints one entry of a list per line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    joined = lines[0] if lines else ""
    for before, line in pairwise(lines):
        joined += (" " if before.endswith(":") else "; ") + line
    return joined


class _TaggedAnswers(TaggedAnswers):
    explores = ("go to ", "teleport to ", "look ")

    def goal(self, first: Outcome) -> str:
        """Returns the first sentence of the task. The others say how to reach it."""
        return task_of(first).partition(".")[0]


class ScienceworldMetaTemplate(_TaggedAnswers, ScienceworldFullTemplate):
    """The full prompt with the latest answers, the plan, and an instruction that asks for one tag."""

    name = "meta"

    def render(self, first: Outcome, turns: Sequence[Turn], now: Outcome) -> str:
        """Renders the prompt. The first turn shows neither history nor plan."""
        answers = [latest_answers(turns, partial(look_of, first=first))] if turns else []
        plan = [plan_line(turns), ""] if turns else []
        parts = situation(first, turns, now, history=self.history, answers=answers)
        return "\n".join([*parts, "", *plan, _META_INSTRUCTION])


class ScienceworldCompactMetaTemplate(_TaggedAnswers, ScienceworldCompactTemplate):
    """The compact prompt with a fifth line, the plan, and tagged answers."""

    name = "compact-meta"

    def render(self, first: Outcome, turns: Sequence[Turn], now: Outcome) -> str:
        return f"{super().render(first, turns, now)}Plan: {plan_of(turns) or '-'}\n"


_META_INSTRUCTION = instruction(failed=UNKNOWN, choose=_CHOOSE)
